"""Records within an object, as Conduit's connector writes them: five columns, the payload and the key as they are.

The payload is that after the change; of a deletion it is empty. A document is its JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from conduit_dagster import storage
from conduit_dagster.connectors.columnar.parquet_writer import ParquetPart
from conduit_dagster.connectors.formats import Refused, nack_of
from conduit_dagster.expressions import EvaluationError
from conduit_dagster.record import Data, Record
from conduit_dagster.sdk import Delivery, Part, Refusal, Writer, WriterTask
from conduit_dagster.sink import Sink

_encode = msgspec.json.Encoder().encode
COLUMNS: Final = pa.schema(
    [
        *(pa.field(name, pa.binary(), nullable=False) for name in ("operation", "position", "payload", "key")),
        pa.field("metadata", pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False)), nullable=False),
    ]
)
_COMPRESSION: Final = "gzip"
_ROW: Final = 100
"""Bytes of a row besides its payload and key, about."""


class _Line(msgspec.Struct):
    """A record as a line of JSON, with the names in Conduit's order."""

    Operation: str
    Position: str
    Payload: str
    Key: str
    Metadata: dict[str, str]


def _bytes_of(data: Data) -> bytes:
    return data if isinstance(data, bytes) else b"" if data is None else _encode(data)


class JsonLines:
    """An encoder of lines of JSON. Raw data that is not UTF-8 is refused, where Conduit would change it."""

    def encode_block(self, records: list[Record]) -> tuple[bytes, Refused]:
        """Return the lines, and the nacks of records that can't be one."""
        lines: list[bytes] = []
        refused: Refused = []
        for place, record in enumerate(records):
            try:
                lines.append(_encode(_line(record)) + b"\n")
            except Exception as error:  # noqa: BLE001  # whatever a record holds is its own nack
                refused.append((place, nack_of(error)))
        return b"".join(lines), refused


def _line(record: Record) -> _Line:
    texts = (_text(_bytes_of(record.after), "payload"), _text(_bytes_of(record.key), "key"))
    return _Line(record.operation, str(record.position), *texts, record.metadata)


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise EvaluationError(f"the {what} is not UTF-8 text: use the format parquet, which takes any bytes") from None


class RowsWriter(Writer):
    """Writer of a Parquet file."""

    def __init__(self, task: WriterTask) -> None:
        self._part = ParquetPart(task, _COMPRESSION)

    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Stage the records."""
        if records:
            columns = [
                [record.operation.encode() for record in records],
                [str(record.position).encode() for record in records],
                [_bytes_of(record.after) for record in records],
                [_bytes_of(record.key) for record in records],
                _entries(records),
            ]
            sizes = [len(payload) + len(key) + _ROW for payload, key in zip(*columns[2:4], strict=True)]
            arrays = [pa.array(values, field.type) for values, field in zip(columns, COLUMNS, strict=True)]
            self._part.add(pa.Table.from_arrays(arrays, schema=COLUMNS), sizes)
        return ()

    def finish(self) -> Part | None:
        """Finish the file; return its part."""
        return self._part.finish()

    def abort(self) -> None:
        """Abort the file."""
        self._part.abort()


def _entries(records: list[Record]) -> list[list[tuple[str, str]]]:
    """Return the metadata of each record as a list; records of a block mostly share theirs."""
    last: dict[str, str] | None = None
    found, entries = list[list[tuple[str, str]]](), list[tuple[str, str]]()
    for record in records:
        if record.metadata is not last:
            last = record.metadata
            entries = list(last.items())
        found.append(entries)
    return found


def joined_lines(delivery: Delivery) -> Iterator[bytes]:
    """Yield the bytes of a delivery's lines."""
    for part in delivery.parts:
        yield from storage.chunks(storage.join(delivery.staging, part.name))


def joined_rows(delivery: Delivery) -> Iterator[bytes]:
    """Yield the bytes of one Parquet file with the rows of all parts. Holds a row group in memory."""
    if len(delivery.parts) == 1:
        yield from joined_lines(delivery)
        return
    made = _Made()
    with pq.ParquetWriter(Sink(made), COLUMNS, compression=_COMPRESSION, store_schema=False) as file:
        for part in delivery.parts:
            with storage.open_read(storage.join(delivery.staging, part.name)) as staged:
                groups = pq.ParquetFile(staged)
                for number in range(groups.num_row_groups):
                    file.write_table(groups.read_row_group(number))
                    yield from made.taken()
    yield from made.taken()


class _Made:
    """Bytes that are written, and then taken."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []

    def write(self, data: bytes) -> None:
        self._waiting.append(bytes(data))

    def taken(self) -> list[bytes]:
        found, self._waiting = self._waiting, []
        return found
