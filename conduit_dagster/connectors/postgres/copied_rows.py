"""A part of a table as records: read by a task, under the snapshot that the driver holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from psycopg import pq, sql
from psycopg.errors import error_from_result

from conduit_dagster.connectors.postgres.changes import ReadAs, collection_of
from conduit_dagster.connectors.postgres.connection import Connection
from conduit_dagster.connectors.postgres.row_values import Decode
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.source_tables import KeyColumn, key_range
from conduit_dagster.record import COLLECTION, Record

_COPY = "COPY (SELECT {names} FROM {table} WHERE {range} ORDER BY {order}) TO STDOUT"
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET TRANSACTION SNAPSHOT {}"
_ESCAPES = {
    b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v", b"\\": b"\\",
}  # fmt: skip


CopyOperation = Literal["snapshot", "create", "update"]


class TablePart(NamedTuple):
    """Rows of a table: those behind one place in its order, up to another one."""

    table: TableName
    columns: list[tuple[str, int]]
    """Name and type (OID) of each."""
    key: list[str]
    order: list[KeyColumn]
    """The columns that order the rows, and that tell one from another."""
    operation: CopyOperation
    after: list[str] | None
    upto: list[str] | None

    @property
    def names(self) -> list[str]:
        """Return the columns' names."""
        return [name for name, _ in self.columns]


def see_as(connection: Connection, snapshot: str) -> None:
    """Begin a transaction that sees what a snapshot sees. Raises ``psycopg.Error`` if nobody holds it any more."""
    connection.execute(sql.SQL(_BEGIN).format(sql.Literal(snapshot)))


def copy_lines(connection: Connection, part: TablePart) -> Iterator[bytes]:
    """Yield each row as a line of COPY's text form, without its end. Raises ``psycopg.Error``."""
    statement = sql.SQL(_COPY).format(
        names=sql.SQL(", ").join(map(sql.Identifier, part.names)),
        table=part.table.quoted,
        range=key_range(part.order, part.after, part.upto),
        order=sql.SQL(", ").join(sql.Identifier(column.name) for column in part.order),
    )
    server = connection.pgconn
    begun = server.exec_(statement.as_string(connection).encode())
    if begun.status != pq.ExecStatus.COPY_OUT:
        raise error_from_result(begun)
    get = server.get_copy_data
    while True:
        # the server sends a row per message
        size, data = get(0)
        if size <= 0:
            break
        yield bytes(data[:-1])
    while (result := server.get_result()) is not None:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise error_from_result(result)


class RowRecords:
    """Maker of records from lines of COPY's text form."""

    def __init__(self, part: TablePart, decoders: Sequence[Decode], read_as: ReadAs) -> None:
        self._names = part.names
        self._decoders = decoders
        self._order = [self._names.index(column.name) for column in part.order]
        self._key_names = part.key
        self._operation = part.operation
        self._table = str(part.table)
        # shared by all records of the split: nobody changes it in place
        self._metadata = {COLLECTION: collection_of(self._table), **read_as.labels}
        self._with_positions = read_as.with_positions

    def record(self, line: bytes) -> Record:
        """Return the record of a line."""
        after = dict(zip(self._names, self._values(line), strict=True))
        key = {name: after[name] for name in self._key_names}
        position = self.position(line) if self._with_positions else ""
        return Record(position, self._metadata, after, key, None, self._operation)

    def whole(self, line: bytes) -> Record:
        """Return the record of a line with its position, once more."""
        record = self.record(line)
        record.position = self.position(line)
        return record

    def order_texts(self, line: bytes) -> list[str]:
        """Return the values of the columns that order the rows, as text."""
        cells = line.split(b"\t")
        return [unescaped(cells[place]).decode() for place in self._order]

    def position(self, line: bytes) -> str:
        """Return the position of a line's record: its table, and its place in the table's order."""
        return f"{self._table}/{json.dumps(self.order_texts(line), ensure_ascii=False, separators=(',', ':'))}"

    def _values(self, line: bytes) -> list[Any]:
        cells = line.split(b"\t")
        if b"\\" not in line:
            return [decode(cell) for decode, cell in zip(self._decoders, cells, strict=True)]
        return [
            None if cell == b"\\N" else decode(unescaped(cell))
            for decode, cell in zip(self._decoders, cells, strict=True)
        ]


def unescaped(cell: bytes) -> bytes:
    """Return a cell of COPY's text form as it was."""
    if b"\\" not in cell:
        return cell
    head, *rest = cell.split(b"\\")
    made, is_escaped = [head], False
    for piece in rest:
        if is_escaped:
            # the backslash before this piece was itself escaped
            made.append(piece)
            is_escaped = False
        elif piece:
            made.append(_ESCAPES[piece[:1]] + piece[1:])
        else:
            made.append(b"\\")
            is_escaped = True
    return b"".join(made)
