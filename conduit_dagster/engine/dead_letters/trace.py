"""What each processor does to a record: run on the spot, with the pipeline as its file is now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from conduit_dagster.engine.compiled import CompiledPipeline
from conduit_dagster.engine.inlets import Inlet
from conduit_dagster.engine.nodes import Step
from conduit_dagster.record import Nack, Record, copy


class Passed(NamedTuple):
    """One node, and what came out of it."""

    node: str
    records: Sequence[Record]
    """Copies; none where the record was filtered or nacked."""
    nack: Nack | None = None
    failed: Record | None = None
    """The record as it was when it was nacked."""
    filtered: bool = False


class _Fate:
    """Remembers what a node said of the record."""

    def __init__(self) -> None:
        self.nack: Nack | None = None
        self.failed: Record | None = None
        self.dropped = False

    def filtered(self, node: str, origin: int) -> None:
        del node, origin
        self.dropped = True

    def nacked(self, node: str, origin: int, nack: Nack, record: Record) -> None:
        del node, origin
        self.nack, self.failed = nack, copy(record)


def trace(pipeline: CompiledPipeline, inlet: Inlet, original: Record, now_ns: int) -> Iterator[Passed]:
    """Node by node, from the source to the destinations, which are not written to.

    Behind the fan-out branch by branch. A record that is split goes on as all of its parts.
    """
    pipeline.clock.now_ns = now_ns
    records: Sequence[Record] = [copy(original)]
    for step in (*inlet.nodes, *pipeline.nodes):
        passed = _pass(step, records)
        yield passed
        records = passed.records
        if not records:
            return
    for outlet in pipeline.outlets:
        mine = [copy(record) for record in records]
        for step in outlet.nodes:
            passed = _pass(step, mine)
            yield passed
            mine = list(passed.records)


def _pass(step: Step, records: Sequence[Record]) -> Passed:
    fate = _Fate()
    given: list[Any] = [copy(record) for record in records]
    out, _ = step.run(given, range(len(given)), fate) if given else ([], [])
    return Passed(step.node, [copy(record) for record in out], fate.nack, fate.failed, fate.dropped)
