"""What the steps of a pipeline read: its sources, or the log of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conduit_dagster.connectors.base import Source
from conduit_dagster.engine.nodes import Step
from conduit_dagster.engine.program import Program
from conduit_dagster.state.steps import Range


@dataclass(frozen=True)
class Inlet:
    """A source with what its records pass before the fan-in."""

    id: str
    source: Source
    nodes: Sequence[Step]

    def offsets(self, span: Range, count: int) -> dict[str, tuple[int, int]]:
        """The offsets ``[first, stop)`` of the range's first ``count`` records, by the source they belong to."""
        return {self.id: (span.offset, span.offset + count)}


def inlets_of(program: Program, sources: Sequence[Inlet]) -> Sequence[Inlet]:
    """The sources as the steps see them."""
    return sources
