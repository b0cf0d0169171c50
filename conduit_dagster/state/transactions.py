"""Transactions under a pipeline's lease that wait for a store that is away, and are applied once."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from conduit_dagster.state.database import BUSY, reading
from conduit_dagster.state.lease import Lease
from conduit_dagster.state.outage import is_outage, unreachable
from conduit_dagster.state.schema import pipelines

T = TypeVar("T")
_FIRST_WAIT, _LONGEST_WAIT, _LOOK = 0.05, 1.0, 0.05
_BUSY_MS = 500  # SQLite's own wait for its lock, within which nothing can interrupt it


class Transactions:
    """Runs the transactions of one lease, one after the other; make one object per lease.

    An attempt under way is not interrupted: on a server that is gone it takes up to 10 s longer than ``patience``
    (seconds), on one that is frozen, with its connections open, until it goes on.
    """

    def __init__(
        self, engine: sa.Engine, lease: Lease, patience: float = 30.0, interrupted: Callable[[], bool] = lambda: False
    ) -> None:
        self._engine = engine.execution_options(**{BUSY: _BUSY_MS})
        self._lease = lease
        self._patience = patience
        self._interrupted = interrupted
        # another transaction of ours between a lost answer and its repetition would hide the token
        self._turn = threading.Lock()

    def run(self, work: Callable[[sa.Connection], T], **values: Any) -> T:
        """``work`` and ``values`` of the pipeline's row in one transaction, exactly once; gives what ``work`` gave.

        ``work`` may be called again after an attempt that was rolled back. Raises ``LeaseLost``, and
        ``TransientError`` (``state.unreachable``) after ``patience`` or when interrupted: whether the last attempt
        was applied is then not known.
        """
        once = _Once(self._lease, work, values)
        with self._turn:
            return self._patiently(lambda: once.attempt(self._engine))

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """What ``work`` reads, all of it at one moment. Does not look at the lease."""

        def attempt() -> T:
            with reading(self._engine) as connection:
                return work(connection)

        return self._patiently(attempt)

    def _patiently(self, attempt: Callable[[], T]) -> T:
        deadline = time.monotonic() + self._patience
        wait = _FIRST_WAIT
        while True:
            try:
                return attempt()
            except DBAPIError as error:
                if not is_outage(error):
                    raise
                if not self._wait(min(wait, deadline - time.monotonic())):
                    raise unreachable(self._engine, error, "the state store does not answer") from error
            wait = min(2 * wait, _LONGEST_WAIT)

    def _wait(self, seconds: float) -> bool:
        """False when there is no time left, or nobody who wants to wait."""
        until = time.monotonic() + seconds
        while not self._interrupted():
            left = until - time.monotonic()
            if left <= 0:
                return seconds > 0
            time.sleep(min(left, _LOOK))
        return False


class _Once(Generic[T]):
    """One transaction and its attempts, known in the store by one token."""

    def __init__(self, lease: Lease, work: Callable[[sa.Connection], T], values: dict[str, Any]) -> None:
        self._lease, self._work, self._values = lease, work, values
        self._token = secrets.token_hex(16)
        self._sent: list[T] = []  # what the work gave in attempts whose commit was sent

    def attempt(self, engine: sa.Engine) -> T:
        with engine.begin() as connection:
            if self._sent and self._is_applied(connection):
                return self._sent[-1]
            self._lease.guard(connection, txn=self._token, **self._values)
            value = self._work(connection)
            self._sent.append(value)
        return value

    def _is_applied(self, connection: sa.Connection) -> bool:
        # locked: an attempt that the server still commits, after its answer was given up, is waited for
        mine = sa.select(pipelines.c.txn).where(pipelines.c.pipeline == self._lease.pipeline)
        return connection.execute(mine.with_for_update()).scalar_one_or_none() == self._token
