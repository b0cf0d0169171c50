"""A connection to PostgreSQL with a timeout for answers."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, ClassVar, Final, Self, TypeVar

import psycopg

DURABLE: Final = (
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    " UNION ALL SELECT set_config('client_min_messages', 'warning', false)"
)
"""Makes commits survive a crash of the server: else published steps, or rows reported as delivered, would be lost.
A wait for standbys that was cancelled is told by a warning alone.
"""
_UNLIMITED: Final = (
    "SELECT set_config(name, '0', false) FROM pg_settings"
    " WHERE name IN ('statement_timeout', 'transaction_timeout') AND setting <> '0' AND source <> 'client'"
)
"""Lifts limits that a role, a database or the server sets for others: a statement that is longer, such as one for many
dead letters, would be repeated and fail again. :attr:`TimedConnection.seconds` holds, and what the URL's options say.
"""

_AWAITED: Final = " to a commit: it may wait for a standby of synchronous_standby_names that is gone"

T = TypeVar("T")


def is_cancelled_wait(notice: psycopg.errors.Diagnostic) -> bool:
    """Return whether a commit's wait for the synchronous standbys was cancelled: they may lack it."""
    # the function's name, since the message may be in any language
    return notice.source_function == "SyncRepWaitForLSN"


class LackingStandbyError(psycopg.OperationalError):
    """A transaction is committed, but its wait for the synchronous standbys was cancelled: they may lack it."""


class TimedConnection(psycopg.Connection[Any]):
    """A connection that closes if the server has not answered for :attr:`seconds`, and raises as for a lost server.

    A frozen server, or one behind a frozen proxy, keeps its connections alive: keepalives don't detect that, and
    neither does a timeout that the server itself enforces. The statement may have been executed.
    """

    seconds: ClassVar[float] = 30.0
    """The timeout: as long as SQLite waits for its lock; a server waits 10 s for one."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._cancelled: list[str] = []
        self._awaited = ""

    @classmethod
    def connect_durably(cls, *args: Any, **settings: Any) -> Self:
        """Connect; what is committed survives a crash of the server, and no default limits a statement's time."""
        connection = cls.connect(*args, **settings)
        connection.add_notice_handler(connection._noticed)
        try:
            connection.autocommit = True
            connection.execute(DURABLE)
            connection.execute(_UNLIMITED)
            connection.autocommit = False
        except psycopg.Error:
            connection.close()
            raise
        return connection

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        if is_cancelled_wait(notice):
            self._cancelled.append(notice.message_primary or "")

    def commit(self) -> None:
        """Commit. Raises :class:`LackingStandbyError` if a failover might undo it, although it is committed."""
        self._cancelled.clear()
        self._awaited = _AWAITED
        try:
            super().commit()
        finally:
            self._awaited = ""
        if self._cancelled:
            raise LackingStandbyError(f"synchronous standbys may lack what was committed: {self._cancelled[0]}")

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **more: Any) -> T:
        """Wait like the base class, which calls this for each statement and each end of a transaction."""
        return super().wait(self._in_time(gen), *args, **more)

    def _in_time(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        until = time.monotonic() + self.seconds
        try:
            wanted = next(gen)
            while True:
                # nothing is ready: the driver checks for interrupts several times a second
                ready = yield wanted
                if not ready and time.monotonic() > until:
                    self.pgconn.finish()
                    said = f"the server has not answered for {self.seconds:g} s{self._awaited}"
                    raise psycopg.OperationalError(said)
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value
