"""Logical replication: the stream of a slot, and its messages (plugin ``pgoutput``, protocol version 2).

A range of the stream can be read any number of times until it is confirmed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGresult

from conduit_dagster.connectors.postgres.connection import NO_LIMITS
from conduit_dagster.connectors.postgres.row_values import SET_SESSION, ReadRow
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.source_position import format_lsn, parse_lsn
from conduit_dagster.processes import is_readable
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
    is_full: bool = False
    """Whether the replica identity is the whole row."""
    key_names: list[str] = field(init=False)
    """Names of the key columns."""

    def __post_init__(self) -> None:
        self.key_names = [self.names[place] for place in self.key]


Columns = Sequence[tuple[str, int]]
"""Name and type (OID) of each column of a table, in its order."""


def read_relation(message: bytes, keys: Callable[[int, Columns], Sequence[str]]) -> Relation:
    """Parse a relation message. ``keys`` returns the key of a table whose message marks all columns as key, or none,
    as names of the columns sent."""
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
        marked = [names.index(column) for column in keys(oid, [*zip(names, types, strict=True)])]
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


_DATA, _KEEPALIVE = b"wk"
_HEADER = 25
_PING = 0.01
"""Seconds without a message after which a keepalive is requested: by itself the server sends one only every 30 s."""
PATIENCE = 120.0
"""Seconds without any answer after which the connection counts as lost."""


_NO_PUBLICATION: Final = "55000"
"""SQLSTATE of the warning with which PostgreSQL 18 leaves out changes of a time without the publication. Older servers
end with an error instead."""


def require_published(state: str | None, said: str | None) -> None:
    """Raise ``psycopg.errors.UndefinedObject``, as older servers do, if a notice says that changes were left out."""
    if state == _NO_PUBLICATION:
        message = f"the server has left out changes that were made while there was no publication: {said}"
        raise psycopg.errors.UndefinedObject(message)


class ReplicationStream:
    """Replication connection that reads a slot. A slot has at most one reader at a time."""

    def __init__(self, parameters: dict[str, str]) -> None:
        """Connect. Raises ``psycopg.OperationalError``."""
        url = make_conninfo(**{**parameters, "replication": "database"})
        self._notices: list[tuple[str, str]] = []
        # PGconn.connect would hold up all threads of the process, the renewal of the lease too, until a server answers
        self._session = psycopg.connect(url, autocommit=True)
        self._connection = self._session.pgconn
        self._connection.nonblocking = 0
        self._connection.notice_handler = self._noticed

    def close(self) -> None:
        """Close the connection; the server then releases the slot."""
        self._session.close()

    def start(self, slot: str, publication: str, start: int) -> None:
        """Start streaming the slot, from transactions that commit at ``start`` or later. Raises ``psycopg.Error``."""
        # a slow consumer reads nothing for long, and answers nothing
        self._execute(f"{SET_SESSION}; SET wal_sender_timeout = 0; {NO_LIMITS}")
        escaped = publication.replace('"', '""').replace("'", "''")
        options = f"proto_version '2', publication_names '\"{escaped}\"'"
        self._execute(f"START_REPLICATION SLOT {slot} LOGICAL {format_lsn(start)} ({options})")

    def history(self, timeline: int) -> str:
        """Return the history file of a timeline, which must not be the first one. Raises ``psycopg.Error``."""
        return (self._execute(f"TIMELINE_HISTORY {timeline}").get_value(0, 1) or b"").decode()

    def wal_end(self) -> int:
        """Return the LSN at which the server's WAL ends, on a standby what it has. Raises ``psycopg.Error``."""
        return parse_lsn((self._execute("IDENTIFY_SYSTEM").get_value(0, 2) or b"").decode())

    def is_standby(self) -> bool:
        """Return whether the server is in recovery. Raises ``psycopg.Error``."""
        return self._execute("SHOW in_hot_standby").get_value(0, 0) == b"on"

    def _execute(self, command: str) -> PGresult:
        result = self._connection.exec_(command.encode())
        if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COPY_BOTH):
            raise error_from_result(result)
        return result

    def messages(self, end: int, confirmed: int) -> Iterator[bytes]:
        """Yield the messages of all transactions that commit before ``end``, which must be in the WAL already.

        ``confirmed``: the server may discard commits before it; 0 confirms nothing. Raises ``psycopg.Error``.
        """
        self._report(confirmed)
        get = self._connection.get_copy_data
        while True:
            size, data = get(1)
            while self._notices:
                require_published(*self._notices.pop())
            if size > 0:
                kind = data[0]
                if kind == _DATA:
                    message = data[_HEADER:].tobytes()
                    if message[0] == BEGIN and int.from_bytes(message[1:9], "big") >= end:
                        return
                    yield message
                elif kind == _KEEPALIVE and int.from_bytes(data[1:9], "big") >= end:
                    # the server sends this keepalive after everything that it has decoded up to that LSN
                    return
            elif size == 0:
                self._wait(confirmed)
            else:
                self._ended()

    def _noticed(self, notice: PGresult) -> None:
        state, said = map(notice.error_field, (pq.DiagnosticField.SQLSTATE, pq.DiagnosticField.MESSAGE_PRIMARY))
        self._notices.append(((state or b"").decode(), (said or b"").decode(errors="replace")))

    def _report(self, confirmed: int) -> None:
        """Report the confirmed LSN to the server, and request a keepalive."""
        lsn = confirmed.to_bytes(8, "big")
        with suppress(BlockingIOError):
            self._connection.put_copy_data(b"r" + lsn * 3 + bytes(8) + b"\x01")
            self._connection.flush()

    def _wait(self, confirmed: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_readable(self._connection.socket, _PING):
            if time.monotonic() > deadline:
                raise psycopg.OperationalError(f"the server has not answered for {PATIENCE:.0f} s")
            self._report(confirmed)
        self._connection.consume_input()

    def _ended(self) -> None:
        result = self._connection.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            raise error_from_result(result)
        said = self._connection.error_message.decode(errors="replace").strip()
        raise psycopg.OperationalError(said or "the server ended the stream")
