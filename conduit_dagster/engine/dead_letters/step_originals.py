"""On the driver: single records of a prepared step as their source gave them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from conduit_dagster.connectors.base import Block, ReadOptions
from conduit_dagster.engine.compiled import CompiledPipeline
from conduit_dagster.engine.dead_letters.originals import Originals
from conduit_dagster.engine.reading import read_blocks
from conduit_dagster.engine.staging import from_rows
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.state.steps import Decision, Plan


class StepOriginals:
    """Reads the splits of a step again, for the few records that a destination refuses."""

    def __init__(self, pipeline: CompiledPipeline) -> None:
        self._pipeline = pipeline
        self._open: dict[str, tuple[int, int, Originals]] = {}
        """By source: the step, the last ordinal that was asked for, and the reader behind it."""

    def of(self, plan: Plan, decision: Decision, source: str, ordinal: int) -> Record | None:
        """The record; None where the source is gone, or not what it was: a prepared step does not need it."""
        step = plan.step
        # as in the step's tasks: what a source makes of the time is the same
        self._pipeline.clock.now_ns = plan.clock_ns
        known, last, reader = self._open.get(source, (-1, -1, None))
        if reader is None or known != step or ordinal <= last:
            reader = Originals(partial(self._blocks, decision, source), 0)
        self._open[source] = (step, ordinal, reader)
        try:
            return reader.of([ordinal])[0]
        except (ConduitError, OSError, StopIteration):
            del self._open[source]
            return None

    def _blocks(self, decision: Decision, source: str) -> Iterator[Block]:
        inlet = self._pipeline.inlet(source)
        tasks = from_rows(decision.splits)
        for split in (one.split for task in tasks for one in task if one.source == source):
            yield from read_blocks(self._pipeline, source, inlet.source, inlet.source.relocate(split), ReadOptions())
