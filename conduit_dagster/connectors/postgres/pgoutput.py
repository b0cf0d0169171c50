"""PostgreSQL's logical replication messages (plugin ``pgoutput``, protocol version 2): relations and rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from conduit_dagster.connectors.postgres.row_functions import ReadRow
from conduit_dagster.record import Document

BEGIN, COMMIT, RELATION, INSERT, UPDATE, DELETE, TRUNCATE = b"BCRIUDT"
NEW, _OLD_ROW = b"NO"
_FULL = ord("f")
MARK: Final = 5
"""Where a change says what its first row is: ``NEW``, or what was there before."""
ROW: Final = 6
"""Where its first row begins."""
_EPOCH_2000: Final = 946_684_800_000_000
"""Microseconds between 1970 and 2000."""


class Begin(NamedTuple):
    """The beginning of a transaction, which was committed long since."""

    lsn: int
    """Where its commit record begins: transactions come in this order."""
    committed_ns: int
    xid: int


def read_begin(message: bytes) -> Begin:
    """Read the first message of a transaction."""
    number = int.from_bytes
    micros = number(message[9:17], "big", signed=True) + _EPOCH_2000
    return Begin(number(message[1:9], "big"), micros * 1_000, number(message[17:21], "big"))


@dataclass(slots=True)
class Relation:
    """A table as the messages after its own one refer to it; the server describes it anew after it was altered."""

    oid: int
    name: str
    """``schema.table``."""
    names: list[str]
    types: list[int]
    key: list[int]
    """Places of the columns that identify a row; none: changes name no row."""
    sends_rows: bool
    """``REPLICA IDENTITY FULL``: what was there before comes whole."""
    key_names: list[str] = field(init=False)
    """Names of the columns that identify a row."""

    def __post_init__(self) -> None:
        self.key_names = [self.names[place] for place in self.key]


def read_relation(message: bytes, keys: Callable[[int], Sequence[str]]) -> Relation:
    """Read a table's description. ``keys`` gives the key's columns where the server marks all columns, or none."""
    schema_end = message.index(0, 5)
    name_end = message.index(0, schema_end + 1)
    name = f"{message[5:schema_end].decode() or 'pg_catalog'}.{message[schema_end + 1 : name_end].decode()}"
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
    return Relation(oid, name, names, types, marked, is_full)


class RowChange(NamedTuple):
    """An insert, update or delete of one row."""

    old: Document | None
    """The row before it, as far as the server sends it; other columns than the key's are None unless ``is_row``."""
    is_row: bool
    """Whether ``old`` is the whole row."""
    new: Document | None
    """The row after it, without large values that it left as they were."""


def read_change(message: bytes, read: ReadRow) -> RowChange:
    """Read an insert, update or delete; ``read`` of the relation's rows."""
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
    """Return the OIDs of the tables that a truncate empties, as messages have them."""
    count = int.from_bytes(message[1:5], "big")
    return [message[6 + 4 * i : 10 + 4 * i] for i in range(count)]
