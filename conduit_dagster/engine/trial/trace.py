"""Trace of records through the processors, node by node, without Spark: nothing is sent or written."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.compiled_pipeline import CompiledPipeline
from conduit_dagster.engine.dead_letters.letter_layout import record_json
from conduit_dagster.engine.nodes import Step
from conduit_dagster.engine.plugin_results import initial_of, latest_of, splits_of
from conduit_dagster.engine.reading import read_blocks
from conduit_dagster.engine.redaction import Redaction
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.record import Nack, Record, copy
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Limit, ReadOptions


class TracedNack(NamedTuple):
    """A record that a node nacked."""

    nack: Nack
    record: Record
    """The record at that moment."""


class TracedNode(NamedTuple):
    """One node with its input and output. All records are copies."""

    node: str
    given: Sequence[Record]
    records: Sequence[Record]
    """Records that continue."""
    nacked: Sequence[TracedNack]
    filtered: int


class Traced(NamedTuple):
    """Path of one record."""

    nodes: Sequence[TracedNode]
    """In file order; after the fan-out grouped by destination. Nodes that no record reached are left out."""
    arrived: Mapping[str, Sequence[Record]]
    """Records that each destination would be sent, by its id."""


class _NodeEvents:
    """Collects the nacks and drops of a node."""

    def __init__(self) -> None:
        self.nacks: list[TracedNack] = []
        self.dropped = 0

    def filtered(self, node: str, origin: int) -> None:
        del node, origin
        self.dropped += 1

    def nacked(self, node: str, origin: int, nack: Nack, record: Record) -> None:
        del node, origin
        self.nacks.append(TracedNack(nack, copy(record)))


def trace(pipeline: CompiledPipeline, source_node: SourceNode, record: Record, now_ns: int) -> Traced:
    """Trace a record node by node, from the source to the destinations, which are not written to.

    ``now_ns``: the time that processors see. If a record is split, all parts continue.
    """
    pipeline.begin_step(now_ns)
    pipeline.idempotency.source = source_node.id
    found: list[TracedNode] = []
    records = _through((*source_node.nodes, *pipeline.nodes), [copy(record)], found)
    return Traced(
        found,
        {
            destination_node.id: _through(destination_node.nodes, records, found)
            for destination_node in pipeline.outputs
        },
    )


def _through(steps: Sequence[Step], records: Sequence[Record], found: list[TracedNode]) -> Sequence[Record]:
    for step in steps:
        if not records:
            break
        passed = _pass(step, records)
        found.append(passed)
        records = passed.records
    return records


def _pass(step: Step, records: Sequence[Record]) -> TracedNode:
    events, given = _NodeEvents(), [copy(record) for record in records]
    out, _ = step.run([copy(record) for record in records], range(len(records)), events)
    return TracedNode(step.node, given, [copy(record) for record in out], events.nacks, events.dropped)


_BYTES = 64 << 20


class TriedRecord(NamedTuple):
    """One record of a source, and its path through the pipeline."""

    source: str
    given: Any
    """As JSON, like all records here; redacted fields are masked."""
    nodes: list[dict[str, Any]]
    arrived: dict[str, list[Any]]
    """Records by destination."""


def dry_run(bound: BoundPipeline, records: int) -> Iterator[TriedRecord]:
    """Trace the first ``records`` of each source, from its beginning, node by node.

    Raises ``FatalError`` (``dry_run.join``) and errors of reading.
    """
    pipeline = bound.compiled
    if pipeline.program.fan_in == "join":
        raise FatalError(
            "a join pairs records that were logged, which takes a run",
            code="dry_run.join",
            node=bound.id,
            fix="try it without fan-in, or write a test with joined records",
        )
    shown = _Shown(Redaction(pipeline.program.redact))
    for source_node in pipeline.sources:
        for record in islice(_read(pipeline, source_node, records), records):
            yield shown.tried(pipeline, source_node, record)


def _read(pipeline: CompiledPipeline, source_node: SourceNode, records: int) -> Iterator[Record]:
    node, source = source_node.node, source_node.source
    pipeline.begin_step(time.time_ns())
    start = initial_of(node, source)
    end = latest_of(node, source, start, Limit(records, _BYTES), None)
    for split in [] if end == start else splits_of(node, source, start, end, 1):
        for block in read_blocks(node, source, pipeline.clock, split, ReadOptions()):
            yield from block.records


class _Shown:
    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction

    def tried(self, pipeline: CompiledPipeline, source_node: SourceNode, record: Record) -> TriedRecord:
        traced = trace(pipeline, source_node, record, pipeline.clock.now_ns)
        arrived = {name: [self._json(one) for one in records] for name, records in traced.arrived.items()}
        return TriedRecord(source_node.id, self._json(record), [self._node(one) for one in traced.nodes], arrived)

    def _node(self, passed: TracedNode) -> dict[str, Any]:
        masked = [self._redaction.nack(one.nack, one.record) for one in passed.nacked]
        return {
            "node": passed.node,
            "given": [self._json(record) for record in passed.given],
            "records": [self._json(record) for record in passed.records],
            "nacked": [{"code": nack.code, "message": nack.message} for nack in masked],
            "filtered": passed.filtered,
        }

    def _json(self, record: Record) -> Any:
        return record_json(self._redaction.record(record))
