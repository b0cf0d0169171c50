"""Rows of the dead-letter index, from what the tasks wrote to the archive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from conduit_dagster.engine.compiled import DEAD_LETTERS
from conduit_dagster.engine.dead_letters.archive import Archive
from conduit_dagster.state.steps import DeadLetter, LetterPart, Plan


def index_rows(
    archive: Archive, parts: Sequence[LetterPart], plan: Plan, origin_of: Callable[[str], str]
) -> Iterator[list[DeadLetter]]:
    """A few thousand at a time, in the order of the records: a million nacks are never in memory together.

    ``origin_of``: the connector whose records a step reads under this name.
    """
    spans = {span.source: span for span in plan.ranges}
    origins = {source: origin_of(source) for source in spans}
    name = plan.hashes.get(DEAD_LETTERS, "")
    for part in parts:
        line = 0
        for letters in archive.index(part.name):
            yield [
                DeadLetter(
                    origins[one.source],
                    spans[one.source].generation,
                    one.position,
                    spans[one.source].offset + one.ordinal,
                    one.node,
                    one.code,
                    one.message,
                    one.namespace,
                    name,
                    one.missed,
                    part.name,
                    place,
                    (one.step, one.number) if one.step >= 0 else None,
                )
                for place, one in enumerate(letters, line)
            ]
            line += len(letters)
