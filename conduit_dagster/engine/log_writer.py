"""Logging of a source's records before they reach the processors, so that log and step share a single read."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from conduit_dagster.commit_log.entries import decode_batch, decode_rows, encode_block, encode_plain
from conduit_dagster.commit_log.segment_writer import PartFile
from conduit_dagster.engine.compiled_pipeline import CompiledPipeline
from conduit_dagster.engine.log_source import LogSource
from conduit_dagster.engine.reading import read_blocks, read_or_fail
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.engine.stage_job import LogRequest, LogResult
from conduit_dagster.record import Record
from conduit_dagster.sdk import Block, Keys, ReadOptions, Split

_OPTIONS = ReadOptions(block_records=12_000, block_bytes=524_288)
"""Larger blocks than a stage's: each batch of the log costs a millisecond, whatever its size."""
_PIECE = 3_000
"""Number of records passed to the processors at a time."""


class LogWriter:
    """Writer of one source's records to a task's log file, in the order in which they are read."""

    def __init__(self, pipeline: CompiledPipeline, node: SourceNode, to: LogRequest, ordinal: int) -> None:
        assert isinstance(node.source, LogSource)
        self._pipeline, self._real = pipeline, node.source.real
        self.source, self._ordinal = node.id, ordinal
        self._next = to.first + ordinal
        # random per attempt, so that a second attempt never collides with the file of the first
        self._file = PartFile(to.folder, self._next, secrets.token_hex(8))
        self.boundary: Any = None
        """The source's own position after the last logged record; None before the first."""

    def blocks(self, split: Split) -> Iterator[Block]:
        """Log the split's records and yield them as logged, so that reading them from the log gives the same bytes."""
        options = _OPTIONS._replace(keys=self._pipeline.reads_keys)
        for block in read_or_fail(read_blocks(self._pipeline, self.source, self._real, split, options)):
            yield from self._logged(block)

    def _logged(self, block: Block) -> Iterator[Block]:
        records, first = block.records, self._next
        batch = self._encoded(block)
        self._file.write(batch)
        self._next += len(records)
        self.boundary = block.boundary(len(records) - 1)
        if _holds_documents(batch):
            # JSON changes values that it can't represent exactly
            records = decode_batch(batch).records
        elif self._pipeline.reads_keys >= Keys.POSITIONS:
            for record in records:
                record.position = str(record.position)
        fill_in = block.complete if block.plain is not None else None
        logged = None if fill_in is None else batch.column("position")
        for begin in range(0, len(records), _PIECE):
            piece = records[begin : begin + _PIECE]
            again = partial(decode_rows, batch, begin)
            positions = None if logged is None else logged.slice(begin, len(piece)).to_pylist
            yield Block(
                piece,
                partial(_boundary, first + begin),
                partial(_complete, fill_in, begin),
                again=again,
                positions=positions,
            )

    def _encoded(self, block: Block) -> Any:
        records, now_us = block.records, self._pipeline.clock.now_ns // 1000
        if block.plain is not None:
            return encode_plain(self.source, self._next, records[0], block.plain(), now_us)
        if block.complete is not None:
            for i, record in enumerate(records):
                block.complete(i, record)
        return encode_block(self.source, self._next, records, None, now_us, {})

    def finish(self) -> LogResult:
        """Close the file; it is durable except for its name, see :meth:`PartFile.finish`."""
        return LogResult(self.source, self._ordinal, self._file.finish(), self.boundary)

    def abort(self) -> None:
        """Abandon the file; nothing in it counts."""
        self._file.abort()


def _holds_documents(batch: Any) -> bool:
    kinds = (batch.column(name).dictionary.to_pylist() for name in ("after_kind", "before_kind", "key_kind"))
    return any("document" in kind for kind in kinds)


def _boundary(first: int, place: int) -> int:
    return first + place + 1


def _complete(fill_in: Callable[[int, Record], None] | None, begin: int, place: int, record: Record) -> None:
    """Complete a record and convert its position to text, as in the log."""
    if fill_in is not None:
        fill_in(begin + place, record)
    record.position = str(record.position)
