"""Trace of a record through the processors, without Spark and without writing anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from conduit_dagster.engine.compiled_pipeline import CompiledPipeline
from conduit_dagster.engine.nodes import Step
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.record import Nack, Record, copy


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
