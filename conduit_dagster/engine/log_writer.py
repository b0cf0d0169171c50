"""Logging of a source's records before they reach the processors, so that log and step share a single read."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, cast

from conduit_dagster.commit_log.entries import Batch, Nacks, decode_batch, decode_rows, encode_block, encode_plain
from conduit_dagster.commit_log.segment_files import PartFile
from conduit_dagster.connectors.formats import nack_of
from conduit_dagster.engine.compiled_pipeline import CompiledPipeline
from conduit_dagster.engine.log_source import LogSource
from conduit_dagster.engine.reading import loggable, read_blocks, read_or_fail
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.engine.stage_job import LogRequest, LogResult
from conduit_dagster.record import Nack, Record
from conduit_dagster.sdk import Block, Keys, PayloadIds, Payloads, PlainBlock, ReadOptions, Split

_OPTIONS: Final = ReadOptions(block_records=12_000, block_bytes=524_288)
"""Larger blocks than a stage's: each batch of the log costs a millisecond, whatever its size."""
_PIECE: Final = 3_000
"""Number of records passed to the processors at a time."""


class LogWriter:
    """Writer of one source's records to a task's log file, in the order in which they are read."""

    def __init__(self, pipeline: CompiledPipeline, node: SourceNode, to: LogRequest, ordinal: int) -> None:
        assert isinstance(node.source, LogSource)
        self._pipeline, self._real = pipeline, node.source.real
        self.source, self._node, self._ordinal = node.id, node.node, ordinal
        self._next = to.first + ordinal
        # random per attempt: a retry never collides with the file of an earlier attempt
        self._file = PartFile(to.folder, self._next, secrets.token_hex(8))
        self._batch: _PlainBatch | None = None
        self._boundary: Callable[[], Any] = lambda: None

    @property
    def boundary(self) -> Any:
        """The source's own position after the last logged record; None before the first. It may cost a read."""
        return self._boundary()

    def blocks(self, split: Split) -> Iterator[Block]:
        """Log the split's records and yield them as logged: reading them from the log later gives the same bytes."""
        keys = self._pipeline.reads_keys
        # plain blocks share a batch of the log, so each can stay small enough for the CPU cache
        plain = self._real.gives_plain and keys < Keys.ALL
        options = (ReadOptions(payloads=not self._pipeline.redaction) if plain else _OPTIONS)._replace(keys=keys)
        for block in read_or_fail(read_blocks(self._node, self._real, self._pipeline.clock, split, options)):
            if block.plain is not None:
                yield self._logged_plain(block, block.plain())
            else:
                yield from self._logged(block)

    def _logged_plain(self, block: Block, plain: PlainBlock) -> Block:
        records, first = block.records, self._next
        # the processors change the record itself
        alike = records.like if isinstance(records, Payloads) else records[0]
        like = Record(0, alike.metadata, operation=alike.operation)
        if self._batch is None or not self._batch.takes(like, plain):
            self._flush()
            self._batch = _PlainBatch(first, like, plain)
        self._batch.add(plain)
        self._next += len(records)
        self._boundary = partial(block.boundary, len(records) - 1)
        if self._pipeline.reads_keys >= Keys.POSITIONS:
            records = _with_text_positions(records)
        return Block(
            records,
            partial(_offset_after, first),
            partial(_complete, block.complete),
            again=partial(_plain_rows, like, plain),
            positions=lambda: list(map(str, plain.positions.to_pylist())),
        )

    def _logged(self, block: Block) -> Iterator[Block]:
        self._flush()
        records, first = block.records, self._next
        batch, nacks = self._encoded(block)
        self._file.write(batch)
        self._next += len(records)
        boundary = block.boundary(len(records) - 1)
        self._boundary = lambda: boundary
        if nacks or _holds_documents(batch):
            # encoding to JSON changes values that it can't represent exactly
            records = decode_batch(batch).records
        elif self._pipeline.reads_keys >= Keys.POSITIONS:
            records = _with_text_positions(records)
        for begin in range(0, len(records), _PIECE):
            again, complete = partial(decode_rows, batch, begin), partial(_complete, None)
            own = {place - begin: nack for place, nack in nacks.items() if begin <= place < begin + _PIECE}
            piece = records[begin : begin + _PIECE]
            positions = batch.column("position").slice(begin, _PIECE).to_pylist
            yield Block(
                piece, partial(_offset_after, first + begin), complete, nacks=own, again=again, positions=positions
            )

    def _encoded(self, block: Block) -> tuple[Batch, Nacks]:
        if block.complete is not None:
            for i, record in enumerate(block.records):
                block.complete(i, record)
        encode = partial(encode_block, self.source, self._next, modes=None, timestamp_us=self._now_us)
        return encode_loggable(encode, self._node, block.records, block.nacks)

    def _flush(self) -> None:
        if self._batch is not None:
            self._file.write(self._batch.encoded(self.source, self._now_us))
            self._batch = None

    @property
    def _now_us(self) -> int:
        return self._pipeline.clock.now_ns // 1000

    def finish(self) -> LogResult:
        """Close the file; it is durable except for its name, see :meth:`PartFile.finish`."""
        self._flush()
        return LogResult(self.source, self._ordinal, self._file.finish(), self.boundary)

    def abort(self) -> None:
        """Abandon the file; none of it counts."""
        self._batch = None
        self._file.abort()


class _PlainBatch:
    """Plain blocks of consecutive offsets that become one batch of the log."""

    def __init__(self, first: int, like: Record, plain: PlainBlock) -> None:
        self._first, self._like, self._kind = first, like, _kind_of(like, plain)
        self._blocks: list[PlainBlock] = []
        self._records = self._bytes = 0

    def takes(self, like: Record, plain: PlainBlock) -> bool:
        """Return whether the batch has room for a block of such records, and all other properties are equal."""
        has_room = self._records < _OPTIONS.block_records and self._bytes < _OPTIONS.block_bytes
        return has_room and _kind_of(like, plain) == self._kind

    def add(self, plain: PlainBlock) -> None:
        self._blocks.append(plain)
        self._records += len(plain.payloads)
        self._bytes += plain.payloads.nbytes

    def encoded(self, source: str, now_us: int) -> Batch:
        import pyarrow as pa

        columns = (pa.concat_arrays(list(column)) for column in zip(*self._blocks, strict=True))
        return encode_plain(source, self._first, self._like, PlainBlock(*columns), now_us)


def _kind_of(like: Record, plain: PlainBlock) -> tuple[Any, ...]:
    # positions in a rotated file are text, those in the first file are numbers
    return like.metadata, like.operation, plain.positions.type, plain.keys.type


def _plain_rows(like: Record, plain: PlainBlock, places: Sequence[int]) -> list[Record]:
    """Return records of a plain block exactly as the log returns them."""

    def row(i: int) -> Record:
        payload, position, key = (column[i].as_py() for column in plain)
        key = key if isinstance(key, bytes) else b"%d" % key
        return Record(str(position), like.metadata, payload, key, None, like.operation)

    return list(map(row, places))


def _with_text_positions(records: list[Record]) -> list[Record]:
    if isinstance(records, Payloads) and records.ids is not None:
        ids = PayloadIds(list(map(str, records.ids.positions)), records.ids.keys)
        return cast("list[Record]", Payloads(records.payloads, records.like, ids))
    for record in records:
        record.position = str(record.position)
    return records


def _holds_documents(batch: Any) -> bool:
    kinds = (batch.column(name).dictionary.to_pylist() for name in ("after_kind", "before_kind", "key_kind"))
    return any("document" in kind for kind in kinds)


def _offset_after(first: int, place: int) -> int:
    return first + place + 1


def _complete(fill_in: Callable[[int, Record], None] | None, place: int, record: Record) -> None:
    """Complete a record and convert its position to text, as in the log."""
    if fill_in is not None:
        fill_in(place, record)
    record.position = str(record.position)


EncodeBlock = Callable[..., Any]
"""Encodes ``records`` with their ``nacks``; raises if the log can't hold one of the records."""


def encode_loggable(encode: EncodeBlock, node: str, records: list[Record], nacks: Nacks) -> tuple[Batch, Nacks]:
    """Encode a block; return it with its nacks, to which ``node`` adds those of records that the log can't hold."""
    try:
        return encode(records=records, nacks=nacks), nacks
    except Exception:  # noqa: BLE001  # whatever a record holds is its own nack
        refused = dict(_refused(encode, records, 0))
    nacks = {**{place: (node, nack) for place, nack in refused.items()}, **nacks}
    shown = [loggable(record) if place in refused else record for place, record in enumerate(records)]
    return encode(records=shown, nacks=nacks), nacks


def _refused(encode: EncodeBlock, records: list[Record], first: int) -> Iterator[tuple[int, Nack]]:
    """Yield the records that the log can't hold, found by halves: the place, from ``first``, and the nack."""
    try:
        encode(records=records, nacks={})
    except Exception as error:  # noqa: BLE001  # as above
        if len(records) == 1:
            yield first, nack_of(error)
            return
        half = len(records) // 2
        yield from _refused(encode, records[:half], first)
        yield from _refused(encode, records[half:], first + half)
