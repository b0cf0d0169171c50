"""Parser of PostgreSQL's logical replication messages (plugin ``pgoutput``, protocol version 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from conduit_dagster.connectors.postgres.row_functions import ReadRow
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.record import Document

BEGIN, COMMIT, RELATION, INSERT, UPDATE, DELETE, TRUNCATE = b"BCRIUDT"
NEW, _OLD_ROW = b"NO"
_FULL = ord("f")
MARK: Final = 5
"""Offset of the kind of a change's first row: ``NEW``, or an old row or key."""
ROW: Final = 6
"""Offset of a change's first row."""
_EPOCH_2000: Final = 946_684_800_000_000
"""Microseconds from 1970 to 2000, PostgreSQL's epoch."""


class Begin(NamedTuple):
    """Begin message of a transaction, which the server only sends after the commit."""

    lsn: int
    """LSN of its commit record: transactions arrive in this order."""
    committed_ns: int
    xid: int


def read_begin(message: bytes) -> Begin:
    """Parse the begin message of a transaction."""
    number = int.from_bytes
    micros = number(message[9:17], "big", signed=True) + _EPOCH_2000
    return Begin(number(message[1:9], "big"), micros * 1_000, number(message[17:21], "big"))


@dataclass(slots=True)
class Relation:
    """A table, as described by its relation message. The server sends another one after the table was altered."""

    oid: int
    name: str
    """``schema.table``."""
    names: list[str]
    types: list[int]
    key: list[int]
    """Indexes of the key columns; empty: changes identify no row."""
    sends_rows: bool
    """``REPLICA IDENTITY FULL``: changes contain the complete old row."""
    key_names: list[str] = field(init=False)
    """Names of the key columns."""

    def __post_init__(self) -> None:
        self.key_names = [self.names[place] for place in self.key]


def read_relation(message: bytes, keys: Callable[[int], Sequence[str]]) -> Relation:
    """Parse a relation message. ``keys`` returns the key columns of a table whose message marks all columns as key, or
    none."""
    schema_end = message.index(0, 5)
    name_end = message.index(0, schema_end + 1)
    schema, table = message[5:schema_end].decode() or "pg_catalog", message[schema_end + 1 : name_end].decode()
    oid = int.from_bytes(message[1:5], "big")
    is_full, at = message[name_end + 1] == _FULL, name_end + 4
    names, types, marked = list[str](), list[int](), list[int]()
    for place in range(int.from_bytes(message[name_end + 2 : at], "big")):
        end = message.index(0, at + 1)
        if message[at] & 1:
            marked.append(place)
        names.append(message[at + 1 : end].decode())
        types.append(int.from_bytes(message[end + 1 : end + 5], "big"))
        at = end + 9
    if is_full or not marked:
        marked = [names.index(column) for column in keys(oid) if column in names]
    return Relation(oid, str(TableName(schema, table)), names, types, marked, is_full)


class RowChange(NamedTuple):
    """An insert, update or delete of one row."""

    old: Document | None
    """The old row, as far as the server sends it; columns outside the key are None unless ``is_row``."""
    is_row: bool
    """Whether ``old`` is the complete row."""
    new: Document | None
    """The new row, without unchanged large values (TOAST)."""


def read_change(message: bytes, read: ReadRow) -> RowChange:
    """Parse an insert, update or delete; ``read`` is the row reader of its relation."""
    mark, old, at = message[MARK], None, ROW
    is_row = mark == _OLD_ROW
    if mark != NEW:
        old, at = read(message, at)
        if message[0] == DELETE:
            return RowChange(old, is_row, None)
        at += 1
    new, _ = read(message, at)
    return RowChange(old, is_row, new)


def read_truncated(message: bytes) -> list[bytes]:
    """Return the OIDs of the truncated tables, as the four bytes of the message."""
    count = int.from_bytes(message[1:5], "big")
    return [message[6 + 4 * i : 10 + 4 * i] for i in range(count)]
