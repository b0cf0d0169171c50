"""The log's entries: one row per record, in a schema that is the same for every pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from conduit_dagster.commit_log.log_columns import (
    METADATA,
    REPEATED,
    Column,
    SharedMetadata,
    decode_metadata,
    decode_payload,
    decode_repeated,
    encode_constant,
    encode_payload,
    encode_repeated,
)
from conduit_dagster.record import COLLECTION, MODE, MODES, Mode, Nack, Record, mode_of
from conduit_dagster.sdk import PlainBlock

Batch = Any
"""A pyarrow record batch of :data:`SCHEMA`; the library has no types."""
Nacks = Mapping[int, tuple[str, Nack]]
"""Entries that a node nacked before they were logged: place in the block to node and nack."""

_TIMESTAMP: Final = pa.timestamp("us", "UTC")
SCHEMA: Final = pa.schema(
    [
        ("source", REPEATED),
        ("offset", pa.int64()),
        ("timestamp", _TIMESTAMP),
        ("mode", REPEATED),
        ("operation", REPEATED),
        ("namespace", REPEATED),
        ("position", pa.string()),
        ("metadata", METADATA),
        ("key", pa.binary()),
        ("key_kind", REPEATED),
        ("before", pa.binary()),
        ("before_kind", REPEATED),
        ("after", pa.binary()),
        ("after_kind", REPEATED),
        ("nack_node", REPEATED),
        ("nack_code", REPEATED),
        ("nack_message", pa.string()),
    ]
)


DECODED: Final = (
    *("offset", "position", "metadata", "after", "after_kind", "key", "key_kind", "before", "before_kind", "operation"),
    *("nack_node", "nack_code", "nack_message"),
)
"""The columns that :func:`decode_batch` needs."""


class Decoded(NamedTuple):
    """A block of entries as records."""

    records: list[Record]
    offsets: list[int]
    nacks: dict[int, tuple[str, Nack]]
    """By place in the block; such a record is not good."""
    complete: Callable[[int, Record], None]
    """Fill in the key and position of record i, where they were left out."""


class Entry(NamedTuple):
    """One entry with everything that the log stores about it."""

    source: str
    offset: int
    timestamp_us: int
    mode: Mode
    namespace: str
    record: Record
    nack: tuple[str, Nack] | None = None
    """The node that nacked it, and the nack; None for a good entry."""


def encode_block(
    source: str,
    first_offset: int,
    records: list[Record],
    modes: Sequence[str] | None,
    timestamp_us: int,
    nacks: Nacks,
) -> Batch:
    """Encode entries of consecutive offsets. ``modes`` None: each record's own, by :func:`mode_of`.

    Raises the errors of msgspec and pyarrow for a record that can't be stored exactly, such as one with a number as a
    metadata value.
    """
    count = len(records)
    if not count:
        return pa.RecordBatch.from_pylist([], SCHEMA)
    shared = SharedMetadata.of([record.metadata for record in records])
    operations = [record.operation for record in records]
    columns = [
        encode_constant(source, count),
        pa.array(np.arange(first_offset, first_offset + count, dtype=np.int64)),
        pa.repeat(pa.scalar(timestamp_us, _TIMESTAMP), count),
        encode_repeated(list(modes)) if modes is not None else _modes(shared, operations, records),
        encode_repeated(operations),
        shared.strings(lambda metadata: metadata.get(COLLECTION, "")),
        *_content(records, shared, nacks),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def encode_plain(source: str, first_offset: int, like: Record, plain: PlainBlock, timestamp_us: int) -> Batch:
    """Encode a block of plain records, of which ``like`` is one, at a fraction of :func:`encode_block`'s cost."""
    count = len(plain.payloads)
    columns = [
        encode_constant(source, count),
        pa.array(np.arange(first_offset, first_offset + count, dtype=np.int64)),
        pa.repeat(pa.scalar(timestamp_us, _TIMESTAMP), count),
        *(encode_constant(value, count) for value in (mode_of(like), like.operation, like.collection)),
        _as_text(plain.positions),
        SharedMetadata([like.metadata], count).array(),
        _as_text(plain.keys).cast(pa.binary()),
        encode_constant("raw", count),
        pa.nulls(count, pa.binary()),
        encode_constant("null", count),
        plain.payloads,
        encode_constant("raw", count),
        *_nack_columns({}, count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _as_text(column: Column) -> Column:
    return column.cast(pa.string()) if pa.types.is_integer(column.type) else column


def encode_entries(entries: list[Entry]) -> Batch:
    """Encode entries with their own offsets and times, such as imported ones; slower than :func:`encode_block`."""
    if not entries:
        return pa.RecordBatch.from_pylist([], SCHEMA)
    records = [entry.record for entry in entries]
    nacks = {place: entry.nack for place, entry in enumerate(entries) if entry.nack is not None}
    columns = [
        encode_repeated([entry.source for entry in entries]),
        pa.array([entry.offset for entry in entries], pa.int64()),
        pa.array([entry.timestamp_us for entry in entries], _TIMESTAMP),
        encode_repeated([entry.mode for entry in entries]),
        encode_repeated([record.operation for record in records]),
        encode_repeated([entry.namespace for entry in entries]),
        *_content(records, SharedMetadata.of([record.metadata for record in records]), nacks),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _content(records: list[Record], shared: SharedMetadata, nacks: Nacks) -> list[Column]:
    return [
        _positions([record.position for record in records]),
        shared.array(),
        *encode_payload([record.key for record in records]),
        *encode_payload([record.before for record in records]),
        *encode_payload([record.after for record in records]),
        *_nack_columns(nacks, len(records)),
    ]


def _modes(shared: SharedMetadata, operations: list[str], records: list[Record]) -> Column:
    if all(metadata.get(MODE) in MODES for metadata in shared.distinct):
        return shared.strings(lambda metadata: metadata[MODE])
    if any(MODE in metadata for metadata in shared.distinct):
        return encode_repeated(list(map(mode_of, records)))
    return encode_repeated(["copy" if operation == "snapshot" else "sync" for operation in operations])


def _positions(positions: list[int | str]) -> Column:
    if set(map(type, positions)) == {int}:
        try:
            return pa.array(positions, pa.int64()).cast(pa.string())
        except OverflowError:
            pass
    return pa.array(list(map(str, positions)), pa.string())


def _nack_columns(nacks: Nacks, count: int) -> list[Column]:
    if not nacks:
        return [pa.nulls(count, REPEATED), pa.nulls(count, REPEATED), pa.nulls(count, pa.string())]
    given = map(nacks.get, range(count))
    rows = [(None, None, None) if one is None else (one[0], one[1].code, one[1].message) for one in given]
    node, code, message = (pa.array(column, pa.string()) for column in zip(*rows, strict=True))
    return [node.dictionary_encode(), code.dictionary_encode(), message]


def decode_rows(batch: Batch, first: int, places: Sequence[int]) -> list[Record]:
    """Decode the complete records of some rows; ``places`` count from the row ``first``."""
    return decode_batch(batch.take(pa.array([first + place for place in places]))).records


def decode_batch(batch: Batch, keys: bool = True) -> Decoded:
    """Decode the records as they were logged; positions are text. Equal metadata is one shared dict.

    Without ``keys`` every key is None and every position 0, until requested one by one.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    complete = partial(_complete, columns)
    if not len(batch):
        return Decoded([], [], {}, complete)
    parts = (
        columns["position"].to_numpy(zero_copy_only=False).tolist() if keys else repeat(0),
        decode_metadata(columns["metadata"]),
        decode_payload(columns["after"], columns["after_kind"]),
        decode_payload(columns["key"], columns["key_kind"]) if keys else repeat(None),
        decode_payload(columns["before"], columns["before_kind"]),
        decode_repeated(columns["operation"]),
    )
    records = list(map(Record, *parts))
    return Decoded(records, columns["offset"].to_numpy().tolist(), _decode_nacks(columns), complete)


def _complete(columns: Mapping[str, Column], place: int, record: Record) -> None:
    (record.key,) = decode_payload(columns["key"].slice(place, 1), columns["key_kind"].slice(place, 1))
    record.position = columns["position"][place].as_py()


def _decode_nacks(columns: Mapping[str, Column]) -> dict[int, tuple[str, Nack]]:
    node, code, message = (columns[name] for name in ("nack_node", "nack_code", "nack_message"))
    if node.null_count == len(node):
        return {}
    places = np.flatnonzero(node.is_valid().to_numpy(zero_copy_only=False)).tolist()
    return {i: (node[i].as_py(), Nack(code[i].as_py(), message[i].as_py())) for i in places}


def decode_entries(batch: Batch) -> Iterator[Entry]:
    """Decode the entries one by one, for display and export; slower than :func:`decode_batch`."""
    decoded = decode_batch(batch)
    sources, modes, namespaces = (decode_repeated(batch.column(name)) for name in ("source", "mode", "namespace"))
    times: list[int] = batch.column("timestamp").cast(pa.int64()).to_pylist()
    for place, (record, offset) in enumerate(zip(decoded.records, decoded.offsets, strict=True)):
        mode = cast(Mode, modes[place])
        nack = decoded.nacks.get(place)
        yield Entry(sources[place], offset, times[place], mode, namespaces[place], record, nack)
