"""Runner of a pipeline's ``tests:``: passes their records through its processors, and compares the results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from typing_extensions import override

from conduit_dagster.config.pipeline import ExpectedNack, Mock, PipelineTest, RecordParts
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.compiled_pipeline import CompiledPipeline, compile_program
from conduit_dagster.engine.plugin_loading import Plugins
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.engine.trial.trace import Traced, TracedNack, trace
from conduit_dagster.expressions import Clock
from conduit_dagster.node_ids import node_id
from conduit_dagster.readable import readable, readable_part
from conduit_dagster.record import SOURCE_CONNECTOR_ID, Data, Record, copy_document
from conduit_dagster.sdk import DROP, Drop, ProcessError, Processor, ProcessorContext, ProcessorSettings


class MockProcessor(Processor):
    """Processor that returns the test's specified result for every record."""

    name: ClassVar[str] = "mock"

    def __init__(self, mock: Mock, node: str) -> None:
        super().__init__(ProcessorSettings(), ProcessorContext("", node, Clock()))
        self._mock = mock

    @override
    def process(self, record: Record) -> Record | Drop:
        if self._mock.nack is not None:
            raise ProcessError(self._mock.nack)
        return DROP if self._mock.drop else with_parts(record, self._mock.record or RecordParts())


def with_parts(record: Record, parts: RecordParts) -> Record:
    """Return the record with the given parts replaced; metadata is merged."""
    record.operation = parts.operation or record.operation
    record.metadata = {**record.metadata, **parts.metadata}
    for name in _given(parts):
        setattr(record, name, data_of(getattr(parts, name)))
    return record


def _given(parts: RecordParts) -> list[str]:
    """Return the names of the data that a test gives, null included."""
    return [name for name in ("key", "before", "after") if name in parts.model_fields_set]


def data_of(part: dict[str, object] | str | None) -> Data:
    """Return a part as a record holds it: a copy, since processors change records."""
    return part.encode() if isinstance(part, str) else None if part is None else copy_document(part)


def nodes_of(pipeline: CompiledPipeline) -> list[str]:
    """Return the ids of all processors, as a test names them."""
    steps = [
        *(step for source_node in pipeline.sources for step in source_node.nodes),
        *pipeline.nodes,
        *(step for destination_node in pipeline.outputs for step in destination_node.nodes),
    ]
    return list(dict.fromkeys(short_name(pipeline, step.node) for step in steps))


def short_name(pipeline: CompiledPipeline, node: str) -> str:
    """Return a node's name as in a test: without its pipeline."""
    return node.removeprefix(f"{pipeline.program.pipeline}:")


NOW_NS = 1_700_000_000_000_000_000
"""Time at which every test runs: 2023-11-14T22:13:20Z."""


class Flaw(NamedTuple):
    """A difference from the expected result."""

    where: str
    expected: Any
    got: Any


class CaseResult(NamedTuple):
    """Result of one test."""

    name: str
    flaws: Sequence[Flaw]

    @property
    def passed(self) -> bool:
        """Whether the test had no flaws."""
        return not self.flaws


class _Found(NamedTuple):
    arrived: Mapping[str, list[Record]]
    nacked: list[tuple[str, TracedNack]]
    filtered: Mapping[str, int]


def run_case(bound: BoundPipeline, test: PipelineTest, plugins: Plugins) -> CaseResult:
    """Run one test, in this process. An exception from a processor that is not a nack is a flaw too."""
    if (flaw := _unusable(bound.compiled, test)) is not None:
        return CaseResult(test.name, [flaw])
    mocks = {node_id(bound.id, node): MockProcessor(mock, node_id(bound.id, node)) for node, mock in test.mocks.items()}
    pipeline = compile_program(bound.program, plugins, mocks)
    source_node = _source_node(pipeline, test.source)
    assert source_node is not None
    given = [_record(pipeline, source_node, number, parts) for number, parts in enumerate(test.records)]
    try:
        traced = [trace(pipeline, source_node, record, NOW_NS) for record in given]
    except Exception as error:  # noqa: BLE001  # an outage, or a bug of a plugin: the test fails with its text
        return CaseResult(test.name, [Flaw("error", "none", str(error))])
    return CaseResult(test.name, list(_flaws(test, _collected(pipeline, traced))))


# -- input --------------------------------------------------------------------------------------------------------


def _unusable(pipeline: CompiledPipeline, test: PipelineTest) -> Flaw | None:
    if _source_node(pipeline, test.source) is None:
        names = [source_node.origin for source_node in pipeline.inputs if not source_node.only]
        return Flaw("source", f"one of {', '.join(names)}", test.source or "none")
    known, destinations = nodes_of(pipeline), [destination_node.id for destination_node in pipeline.outputs]
    for where, names, given in (
        ("mocks", known, test.mocks),
        ("expect.filtered", known, test.expect.filtered),
        ("expect.destinations", destinations, test.expect.destinations),
    ):
        if unknown := [name for name in given if name not in names]:
            return Flaw(where, f"one of {', '.join(names) or 'none'}", unknown[0])
    return None


def _source_node(pipeline: CompiledPipeline, source: str | None) -> SourceNode | None:
    inputs = [source_node for source_node in pipeline.inputs if not source_node.only]
    if source is None:
        return inputs[0] if len(inputs) == 1 else None
    return next((source_node for source_node in inputs if source_node.origin == source), None)


def _record(pipeline: CompiledPipeline, source_node: SourceNode, number: int, parts: RecordParts) -> Record:
    metadata = {SOURCE_CONNECTOR_ID: node_id(pipeline.program.pipeline, source_node.origin), **parts.metadata}
    key, before, after = data_of(parts.key), data_of(parts.before), data_of(parts.after)
    return Record(number, metadata, after, key, before, parts.operation or "create")


# -- comparison of results ----------------------------------------------------------------------------------------


def _collected(pipeline: CompiledPipeline, traced: Sequence[Traced]) -> _Found:
    arrived: dict[str, list[Record]] = {destination_node.id: [] for destination_node in pipeline.outputs}
    nacked: list[tuple[str, TracedNack]] = []
    filtered: dict[str, int] = {}
    for one in traced:
        for name, records in one.arrived.items():
            arrived[name] += records
        for passed in one.nodes:
            node = short_name(pipeline, passed.node)
            nacked += [(node, nack) for nack in passed.nacked]
            filtered[node] = filtered.get(node, 0) + passed.filtered
    return _Found(arrived, nacked, filtered)


def _flaws(test: PipelineTest, found: _Found) -> Iterator[Flaw]:
    for name, records in test.expect.destinations.items():
        got = found.arrived[name]
        if len(got) != len(records):
            yield Flaw(f"{name}: records", len(records), [readable(record) for record in got])
        for number, (expected, record) in enumerate(zip(records, got, strict=False), 1):
            yield from _record_flaws(f"{name}: record {number}", expected, record)
    yield from _nack_flaws(test.expect.nacked, found.nacked)
    for node, count in test.expect.filtered.items():
        if (dropped := found.filtered.get(node, 0)) != count:
            yield Flaw(f"filtered by {node}", count, dropped)


def _record_flaws(where: str, expected: RecordParts, record: Record) -> Iterator[Flaw]:
    if expected.operation is not None and record.operation != expected.operation:
        yield Flaw(f"{where}: operation", expected.operation, record.operation)
    got = {name: record.metadata.get(name) for name in expected.metadata}
    if got != expected.metadata:
        yield Flaw(f"{where}: metadata", expected.metadata, got)
    for name in _given(expected):
        part, found = data_of(getattr(expected, name)), getattr(record, name)
        if _exact(part) != _exact(found):
            yield Flaw(f"{where}: {name}", readable_part(part), readable_part(found))


def _exact(part: Data) -> Data | str:
    """Return a document as JSON in one order of fields: to Python, 1, 1.0 and true are equal."""
    return json.dumps(part, sort_keys=True, default=repr) if isinstance(part, dict) else part


def _nack_flaws(expected: Sequence[ExpectedNack], found: Sequence[tuple[str, TracedNack]]) -> Iterator[Flaw]:
    said = [f"{node}: {one.nack.code}: {one.nack.message}" for node, one in found]
    if len(expected) != len(found):
        yield Flaw("nacked", len(expected), said)
        return
    for number, (want, (node, one), text) in enumerate(zip(expected, found, said, strict=True), 1):
        fits = (
            want.node in (None, node)
            and want.code in (None, one.nack.code)
            and (want.message is None or want.message in one.nack.message)
        )
        if not fits:
            yield Flaw(f"nack {number}", want.model_dump(exclude_none=True), text)
