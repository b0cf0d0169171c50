"""Processors of the dead-letter queue itself."""

from __future__ import annotations

from collections.abc import Sequence

from conduit_dagster.engine.compiled_pipeline import CompiledPipeline
from conduit_dagster.engine.delivery_errors import queue_refuses
from conduit_dagster.record import Nack, Record


def processed(
    pipeline: CompiledPipeline, letters: list[Record], origins: Sequence[int]
) -> tuple[list[Record], Sequence[int]]:
    """Return the letters after the queue's processors. A filtered letter goes to the archive alone.

    Raises ``FatalError`` (``dead_letters.refused``) for a letter that such a processor nacks: there is no queue for it.
    """
    for node in pipeline.letter_nodes:
        letters, origins = node.run(letters, origins, _NoQueue())
    return letters, origins


class _NoQueue:
    def filtered(self, node: str, origin: int) -> None:
        del node, origin

    def nacked(self, node: str, origin: int, nack: Nack, record: Record) -> None:
        del origin, record
        raise queue_refuses(nack, node)
