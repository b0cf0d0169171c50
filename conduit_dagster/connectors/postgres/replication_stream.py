"""Reader of a replication slot's stream. A range can be read any number of times until it is confirmed."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import suppress

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGresult

from conduit_dagster.connectors.postgres.pgoutput import BEGIN
from conduit_dagster.connectors.postgres.row_values import SESSION
from conduit_dagster.connectors.postgres.source_position import format_lsn

_DATA, _KEEPALIVE = b"wk"
_HEADER = 25
_PING = 0.01
"""Seconds without a message after which a keepalive is requested: by itself the server sends one only every 30 s."""
PATIENCE = 120.0
"""Seconds without any answer after which the connection counts as lost."""


class ReplicationStream:
    """Replication connection that reads a slot. A slot has at most one reader at a time."""

    def __init__(self, parameters: dict[str, str]) -> None:
        """Connect. Raises ``psycopg.OperationalError``."""
        url = make_conninfo(**{**parameters, "replication": "database"})
        self._connection = pq.PGconn.connect(url.encode())
        if self._connection.status != pq.ConnStatus.OK:
            said = self._connection.error_message.decode(errors="replace")
            self.close()
            raise psycopg.OperationalError(said)

    def close(self) -> None:
        """Close the connection; the server then releases the slot."""
        self._connection.finish()

    def start(self, slot: str, publication: str, start: int) -> None:
        """Start streaming the slot, from transactions that commit at ``start`` or later. Raises ``psycopg.Error``."""
        for name, value in SESSION.items():
            if name != "client_encoding":
                self._execute(f"SET {name} = '{value}'")
        # a slow consumer reads nothing for long, and answers nothing
        self._execute("SET wal_sender_timeout = 0")
        escaped = publication.replace('"', '""').replace("'", "''")
        options = f"proto_version '2', publication_names '\"{escaped}\"'"
        self._execute(f"START_REPLICATION SLOT {slot} LOGICAL {format_lsn(start)} ({options})")

    def history(self, timeline: int) -> str:
        """Return the history file of a timeline, which must not be the first one. Raises ``psycopg.Error``."""
        return (self._execute(f"TIMELINE_HISTORY {timeline}").get_value(0, 1) or b"").decode()

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

    def _report(self, confirmed: int) -> None:
        """Report the confirmed LSN to the server, and request a keepalive."""
        lsn = confirmed.to_bytes(8, "big")
        with suppress(BlockingIOError):
            self._connection.put_copy_data(b"r" + lsn * 3 + bytes(8) + b"\x01")
            self._connection.flush()

    def _wait(self, confirmed: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while not select.select([self._connection.socket], [], [], _PING)[0]:
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
