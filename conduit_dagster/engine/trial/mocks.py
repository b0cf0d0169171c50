"""Processors that replace others in a test."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from conduit_dagster.config.tests import Mock, RecordParts
from conduit_dagster.engine.compiled_pipeline import CompiledPipeline
from conduit_dagster.expressions import Clock
from conduit_dagster.record import Data, copy_document
from conduit_dagster.sdk import (
    DROP,
    Drop,
    ProcessError,
    Processor,
    ProcessorContext,
    ProcessorSettings,
    Record,
)


class MockProcessor(Processor):
    """Processor that returns what the test specifies, whatever the record."""

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
    """Return the record with the given parts in place of its own; metadata is added."""
    record.operation = parts.operation or record.operation
    record.metadata = {**record.metadata, **parts.metadata}
    record.key = record.key if parts.key is None else data_of(parts.key)
    record.before = record.before if parts.before is None else data_of(parts.before)
    record.after = record.after if parts.after is None else data_of(parts.after)
    return record


def data_of(part: dict[str, object] | str | None) -> Data:
    """Return a part as a record holds it: a copy, since processors change records."""
    return part.encode() if isinstance(part, str) else None if part is None else copy_document(part)


def nodes_of(pipeline: CompiledPipeline) -> list[str]:
    """Return the ids of all processors, as a test names them."""
    steps = [
        *(step for inlet in pipeline.sources for step in inlet.nodes),
        *pipeline.nodes,
        *(step for outlet in pipeline.outlets for step in outlet.nodes),
    ]
    return list(dict.fromkeys(short_name(pipeline, step.node) for step in steps))


def short_name(pipeline: CompiledPipeline, node: str) -> str:
    """Return a node's name as in a test: without its pipeline."""
    return node.removeprefix(f"{pipeline.program.pipeline}:")
