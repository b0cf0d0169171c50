"""Initial copy, task side: the rows of one part of a table as records, read under the driver's snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Literal, NamedTuple

import msgspec
from psycopg import pq, sql
from psycopg.errors import error_from_result

from conduit_dagster.connectors.postgres.changes import ReadAs, collection_of
from conduit_dagster.connectors.postgres.connection import Connection
from conduit_dagster.connectors.postgres.row_values import Decode, column_values, row_builder
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.source_tables import KeyColumn, key_range
from conduit_dagster.record import COLLECTION, Record

_COPY = "COPY (SELECT {names} FROM {table} t WHERE {range} ORDER BY {order}) TO STDOUT"
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET TRANSACTION SNAPSHOT {}"
_as_json = msgspec.json.Encoder().encode
_ESCAPES = {
    b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v", b"\\": b"\\",
}  # fmt: skip


CopyOperation = Literal["snapshot", "create", "update"]


class TablePart(NamedTuple):
    """Key range of a table: the rows after ``after``, up to and including ``upto``."""

    table: TableName
    columns: list[tuple[str, int]]
    """Name and type (OID) of each column."""
    key: list[str]
    order: list[KeyColumn]
    """Columns that order the rows and identify each of them."""
    operation: CopyOperation
    after: list[str] | None
    upto: list[str] | None
    rows: str
    """The table's rows, as SQL for ``FROM``."""

    @property
    def names(self) -> list[str]:
        """Return the column names."""
        return [name for name, _ in self.columns]


def see_as(connection: Connection, snapshot: str) -> None:
    """Begin a transaction under an exported snapshot. Raises ``psycopg.Error`` if the snapshot no longer exists."""
    connection.execute(sql.SQL(_BEGIN).format(sql.Literal(snapshot)))


def copy_lines(connection: Connection, part: TablePart) -> Iterator[bytes]:
    """Yield each row as a line of COPY text. Raises ``psycopg.Error``."""
    statement = sql.SQL(_COPY).format(
        names=sql.SQL(", ").join(map(sql.Identifier, part.names)),
        table=sql.SQL(part.rows),  # pyright: ignore[reportArgumentType]  # as the catalogue quotes it
        range=key_range(part.order, part.after, part.upto),
        order=sql.SQL(", ").join(sql.Identifier(column.name) for column in part.order),
    )
    server = connection.pgconn
    begun = server.exec_(statement.as_string(connection).encode())
    if begun.status != pq.ExecStatus.COPY_OUT:
        raise error_from_result(begun)
    get = server.get_copy_data
    while True:
        # the server sends one row per message
        size, data = get(0)
        if size <= 0:
            break
        yield data.tobytes()
    while (result := server.get_result()) is not None:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise error_from_result(result)


class RowRecords:
    """Builder of records from lines of COPY text."""

    def __init__(self, part: TablePart, decoders: Sequence[Decode], read_as: ReadAs) -> None:
        self._decoders = decoders
        names = part.names
        self._order = [names.index(column.name) for column in part.order]
        self._key = [names.index(name) for name in part.key]
        self._operation = part.operation
        self._rows = row_builder(names)
        self._keys = row_builder(part.key)
        self._table = str(part.table)
        # shared by all records of the split, so it must never be modified in place
        self._metadata = {COLLECTION: collection_of(self._table), **read_as.labels}
        self._with_positions = read_as.with_positions

    def records(self, lines: Sequence[bytes]) -> list[Record]:
        """Return the records of lines, of which there must be at least one."""
        return self._made(lines, self.positions(lines) if self._with_positions else repeat(""))

    def whole(self, lines: Sequence[bytes]) -> list[Record]:
        """Rebuild the records of lines, with their positions."""
        return self._made(lines, self.positions(lines)) if lines else []

    def _made(self, lines: Sequence[bytes], positions: Iterable[str]) -> list[Record]:
        columns = [self._values(*pair) for pair in zip(self._cells(lines), self._decoders, strict=True)]
        rows, keys = self._rows(columns), self._keys([columns[place] for place in self._key])
        metadata, operation = self._metadata, self._operation
        found = zip(positions, rows, keys, strict=False)
        return [Record(position, metadata, after, key, None, operation) for position, after, key in found]

    def order_texts(self, line: bytes) -> list[str]:
        """Return the values of the order columns of a row, as text."""
        return self._order_texts([line])[0]

    def _order_texts(self, lines: Sequence[bytes]) -> list[list[str]]:
        cells = self._cells(lines)
        places = zip(*(cells[place] for place in self._order), strict=True)
        return [[unescaped(cell).decode() for cell in place] for place in places]

    def positions(self, lines: Sequence[bytes]) -> list[str]:
        """Return the positions of the records of lines: the table and the values of its order columns."""
        return [f"{self._table}/{_as_json(texts).decode()}" for texts in self._order_texts(lines)]

    def _cells(self, lines: Sequence[bytes]) -> list[list[bytes]]:
        """Return the cells of each column."""
        # line ends and tabs within a cell are escaped, so they are safe separators
        cells, width = b"".join(lines).replace(b"\n", b"\t").split(b"\t"), len(self._decoders)
        return [cells[place : len(lines) * width : width] for place in range(width)]

    @staticmethod
    def _values(cells: Sequence[bytes], decode: Decode) -> list[Any]:
        if b"\\" in b"".join(cells):
            return [None if cell == b"\\N" else decode(unescaped(cell)) for cell in cells]
        return column_values(cells, decode)


def unescaped(cell: bytes) -> bytes:
    """Unescape a cell of COPY text."""
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
