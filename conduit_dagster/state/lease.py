"""Ownership of a pipeline: an epoch, a heartbeat, and transactions that commit only under them.

Source: DELIVERY.md, Leases.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql.dml import ReturningUpdate

from conduit_dagster.processes import identity, is_dead, is_running
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.recovery.policy import PipelineStatus
from conduit_dagster.state.claim import IS_CLAIMED, claim_of
from conduit_dagster.state.database import is_outage, loss_of, place_of, reading, unreachable
from conduit_dagster.state.row_statements import insert_if_absent
from conduit_dagster.state.sqlite_store import BUSY, replaced
from conduit_dagster.state.tables import pipelines


class LeaseLost(TransientError):  # noqa: N818  # the lease is lost: no fault of anybody
    """Raised if another process owns the pipeline: this one must not decide anything any more."""


class LeaseHeldByCommand(TransientError):  # noqa: N818  # the command ends by itself: no fault of anybody
    """Raised if an operator's command holds the lease: it will give it back, and nothing runs meanwhile."""


class Lease:
    """The right to run one pipeline, kept by a heartbeat until it is released."""

    def __init__(self, engine: sa.Engine, pipeline: str, epoch: int, seconds: float) -> None:
        self.pipeline, self.epoch, self.seconds = pipeline, epoch, seconds
        self._engine = engine
        self._claim = claim_of(engine)
        self._last_beat = 0
        """The last heartbeat known to be committed: the store must never fall back behind it."""
        self._is_set_back = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease-{pipeline}", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._ended.wait(self.seconds / 4):
            try:
                with self._engine.begin() as connection:
                    beat = self._heartbeat(connection)
                    age = 0 if self._claim is None else self._claim.note(connection)
                self._remember(beat, age)
            except Exception:  # noqa: BLE001  # no passing error may end the heartbeat, as of a disk that is away
                continue  # the next transaction of the protocol checks the epoch, and raises

    def _remember(self, beat: int | None, age: int) -> None:
        self._last_beat = max(self._last_beat, beat or 0)
        if beat is not None and self._claim is not None:
            self._claim.remember(age)

    def _heartbeat(self, connection: sa.Connection, **values: Any) -> int | None:
        """Count a heartbeat and set ``values``; return the number of heartbeats, or None if the row is not ours."""
        project = {} if self._claim is None else {"project": self._claim.project}
        new = {f"new_{name}": value for name, value in values.items()}
        bound = {"mine": self.pipeline, "under": self.epoch, **project, **new}
        return connection.execute(_owners_update(tuple(values), bool(project)), bound).scalar_one_or_none()

    def guard(self, connection: sa.Connection, **values: Any) -> int:
        """Raise ``LeaseLost`` unless the epoch is still ours; return the heartbeat, for :meth:`committed`.

        Part of every transaction of the protocol.

        Raises ``FatalError`` (``state.replaced``) if the store is a different one, or an older state of it.
        """
        # read before the statement: a heartbeat that is committed meanwhile is higher than the statement's own
        floor = self._last_beat
        # counts as a heartbeat too: on SQLite the heartbeat thread waits for a transaction, however long that takes
        beat = self._heartbeat(connection, updated_ns=time.time_ns(), **values)
        if beat is None:
            raise self._gone(connection)
        if beat <= floor:
            raise self._back()
        return beat

    def committed(self, beat: int) -> None:
        """Take note that a transaction is committed: a store without it, as after a failover, has lost it."""
        self._last_beat = max(self._last_beat, beat)

    def _gone(self, connection: sa.Connection) -> ConduitError:
        """Return the error for a row that is not ours: it belongs to another owner, or to another store."""
        if self._claim is not None:
            self._claim.require(connection)
        mine = sa.select(pipelines.c.epoch).where(pipelines.c.pipeline == self.pipeline)
        epoch = connection.execute(mine).scalar_one_or_none()
        if epoch is None or epoch < self.epoch:
            return self._back()
        return LeaseLost(
            f"another process has taken over pipeline {self.pipeline}",
            code="lease.lost",
            fix="a run: nothing, if the other one is wanted (pipelines describe names its owner); a command: look at "
            "pipelines history for what it did, and repeat it",
        )

    def _back(self) -> FatalError:
        self._is_set_back = True
        return replaced(place_of(self._engine), "was set back to an older state")

    def tell_set_back(self) -> None:
        """Have a store that was found set back refused from now on: its age alone may not tell, or not any more."""
        if self._is_set_back and self._claim is not None:
            with suppress(SQLAlchemyError, ConduitError), self._engine.begin() as connection:
                self._claim.mark_set_back(connection, self.pipeline)
                self._is_set_back = False

    def abandon(self, last: Callable[[sa.Connection], None]) -> None:
        """Give the pipeline up in one transaction, although a thread of this process may still be working on it.

        The epoch is raised, which fences that thread like a frozen owner. ``last``: further work in the transaction;
        not called if another process already owns the pipeline.
        """
        self._ended.set()
        with self._engine.begin() as connection:
            if self._heartbeat(connection, epoch=self.epoch + 1, owner="") is not None:
                last(connection)

    def release(self) -> None:
        """Stop the heartbeat and free the pipeline for the next run immediately."""
        self._ended.set()
        self._thread.join()
        try:
            with self._engine.begin() as connection:
                beat = self._heartbeat(connection, owner="")
                self._is_set_back |= beat is not None and beat <= self._last_beat
                age = 0 if self._claim is None else self._claim.note(connection)
        except (SQLAlchemyError, ConduitError):
            return  # the next owner waits until the lease times out
        self._remember(beat, age)
        self.tell_set_back()


@cache
def _owners_update(names: tuple[str, ...], is_claimed: bool) -> ReturningUpdate[int]:
    """Return the update of an owner's row that sets the columns ``names`` to parameters ``new_NAME``; built once."""
    column = pipelines.c
    mine = (
        column.pipeline == sa.bindparam("mine", type_=column.pipeline.type),
        column.epoch == sa.bindparam("under", type_=column.epoch.type),
    )
    new = {name: sa.bindparam(f"new_{name}", type_=column[name].type) for name in names}
    return (
        sa.update(pipelines)
        .where(*mine, *((IS_CLAIMED,) if is_claimed else ()))
        .values(heartbeat=column.heartbeat + 1, **new)
        .returning(column.heartbeat)
    )


def acquire(
    engine: sa.Engine,
    pipeline: str,
    seconds: float,
    cancelled: Callable[[], bool] = lambda: False,
    epoch: int | None = None,
    by_command: bool = False,
) -> Lease:
    """Acquire the pipeline's lease once it is free, or its owner is dead or silent for ``seconds``.

    ``epoch``: only from the owner with this epoch, which was found dead. ``by_command``: for one operation, not for a
    run. Raises ``TransientError`` (``lease.held``) if the owner shows a heartbeat, or is another one.
    """
    _ensure(engine, pipeline)
    seen = _found_free(engine, pipeline, seconds, cancelled, epoch)
    owner = identity(os.getpid()) | ({_COMMAND: True} if by_command else {})
    return Lease(engine, pipeline, _take(engine, pipeline, seen, owner), seconds)


def refusal(engine: sa.Engine, pipeline: str, seconds: float, cancelled: Callable[[], bool]) -> TransientError | None:
    """Return the ``lease.held`` that :func:`acquire` would raise, if any, for a known pipeline; takes as long."""
    try:
        _found_free(engine, pipeline, seconds, cancelled)
    except TransientError as error:
        if error.code != "lease.held":
            raise
        return error
    return None


def _found_free(
    engine: sa.Engine, pipeline: str, seconds: float, cancelled: Callable[[], bool], epoch: int | None = None
) -> dict[str, Any]:
    """Return the pipeline's row once its lease is free. Raises as :func:`acquire`."""
    seen = _look(engine, pipeline)
    if epoch is not None and seen["epoch"] != epoch:
        raise _held(pipeline, seen["owner"])
    until = time.monotonic() + seconds
    while not is_free(seen["owner"]) and time.monotonic() < until and not cancelled():
        time.sleep(min(0.05, seconds / 10))
        now = _look(engine, pipeline)
        if now["heartbeat"] != seen["heartbeat"] and not is_free(now["owner"]):
            raise _held(pipeline, now["owner"])
        seen = now
    if not is_free(seen["owner"]) and time.monotonic() < until:
        raise _held(pipeline, seen["owner"])  # cancelled while waiting: the owner was not found silent
    return seen


def is_free(owner: str) -> bool:
    """Return whether the lease is free, given the stored owner."""
    return not owner or is_dead(json.loads(owner))


def free_silent(engine: sa.Engine, pipeline: str, seconds: float) -> bool:
    """Free the lease of an owner on another machine that is silent for ``seconds``; return whether it was.

    Without this a machine that is gone would own its pipelines until their next run. An owner on this machine is
    either alive or known to be dead.
    """
    mine = sa.select(pipelines.c.owner).where(pipelines.c.pipeline == pipeline)
    with reading(engine) as connection:
        owner = connection.execute(mine).scalar_one_or_none() or ""
    if is_free(owner) or is_running(json.loads(owner)):
        return False
    try:
        acquire(engine, pipeline, seconds, by_command=True).release()
    except ConduitError as error:
        if error.code != "lease.held":
            raise
        return False
    return True


_COMMAND = "command"
"""Key of an owner that holds the lease for one operation."""


def is_command(owner: Mapping[str, Any] | None) -> bool:
    """Return whether an owner holds the lease for one operation, and runs nothing."""
    return owner is not None and bool(owner.get(_COMMAND))


def _held(pipeline: str, owner: str) -> TransientError:
    who = json.loads(owner) if owner else {}  # empty: it was acquired and released meanwhile
    where = f", in process {who['pid']} on {who['host']}" if who else ""
    if is_command(who):
        return LeaseHeldByCommand(
            f"a command is at work on pipeline {pipeline}{where}",
            code="lease.held",
            fix="repeat this once that command has ended",
        )
    return TransientError(
        f"pipeline {pipeline} is already running{where}",
        code="lease.held",
        fix="stop that run first, or let it finish",
    )


def _ensure(engine: sa.Engine, pipeline: str) -> None:
    fresh: dict[str, Any] = {
        "pipeline": pipeline, "epoch": 0, "heartbeat": 0, "owner": "", "status": PipelineStatus.STOPPED,
        "reason": "user", "error": "", "next_step": 1, "window": "", "file": "", "updated_ns": time.time_ns(),
    }  # fmt: skip
    claim = claim_of(engine)
    with engine.begin() as connection:
        if claim is not None:
            claim.require(connection)
        insert_if_absent(connection, pipelines, **fresh)


def _look(engine: sa.Engine, pipeline: str) -> dict[str, Any]:
    with reading(engine) as connection:
        row = connection.execute(sa.select(pipelines).where(pipelines.c.pipeline == pipeline)).mappings().one()
        return dict(row)


def _take(engine: sa.Engine, pipeline: str, seen: dict[str, Any], owner: dict[str, Any]) -> int:
    """Raise the epoch by compare-and-set and return it: of two contenders one wins."""
    epoch = int(seen["epoch"]) + 1
    with engine.begin() as connection:
        changed = connection.execute(
            sa.update(pipelines)
            .where(pipelines.c.pipeline == pipeline, pipelines.c.epoch == seen["epoch"])
            .values(epoch=epoch, heartbeat=pipelines.c.heartbeat + 1, owner=json.dumps(owner))
        )
        if changed.rowcount != 1:
            now = connection.execute(sa.select(pipelines.c.owner).where(pipelines.c.pipeline == pipeline)).scalar_one()
            raise _held(pipeline, now)
    return epoch


T = TypeVar("T")
_FIRST_WAIT, _LONGEST_WAIT, _LOOK = 0.05, 1.0, 0.05
_BUSY_MS = 500  # SQLite's own wait for its lock, which nothing can interrupt


class Transactions:
    """Runner of one lease's transactions, one after the other; create one object per lease.

    ``patience`` (seconds) begins with the first failure. A running attempt is not interrupted: if the server is gone it
    takes up to 10 s longer; if it is frozen with open connections, the first failure comes after 30 s.
    """

    def __init__(
        self, engine: sa.Engine, lease: Lease, patience: float = 30.0, interrupted: Callable[[], bool] = lambda: False
    ) -> None:
        self._engine = engine.execution_options(**{BUSY: _BUSY_MS})
        self._lease = lease
        self._patience = patience
        self._interrupted = interrupted
        # another of our transactions between a lost answer and its retry would overwrite the token
        self._turn = threading.Lock()

    def run(self, work: Callable[[sa.Connection], T], **values: Any) -> T:
        """Apply ``work`` and ``values`` of the pipeline's row in one transaction, exactly once; return work's result.

        ``work`` may be called again after an attempt that was rolled back. Raises ``LeaseLost``, and
        ``TransientError`` (``state.unreachable``) after ``patience`` or when interrupted: it is then unknown whether
        the last attempt was applied.
        """
        once = _Once(self._lease, work, values)
        with self._turn:
            try:
                return self._patiently(lambda: once.attempt(self._engine))
            finally:
                self._lease.tell_set_back()

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Return the result of ``work``, run on a consistent snapshot. Does not check the lease."""

        def attempt() -> T:
            with reading(self._engine) as connection:
                return work(connection)

        return self._patiently(attempt)

    def _patiently(self, attempt: Callable[[], T]) -> T:
        # from the first failure: a connection that hangs may take all of it, where a new one would be answered at once
        deadline: float | None = None
        wait = _FIRST_WAIT
        while True:
            try:
                return attempt()
            except SQLAlchemyError as error:
                deadline = deadline or time.monotonic() + self._patience
                if loss_of(error):
                    raise unreachable(self._engine, error, "the state store can't be used") from error
                if not is_outage(error):
                    raise
                if not self._wait(min(wait, deadline - time.monotonic())):
                    raise unreachable(self._engine, error, "the state store does not answer") from error
            wait = min(2 * wait, _LONGEST_WAIT)

    def _wait(self, seconds: float) -> bool:
        """Wait this long; return False once the time is used up or a stop was requested."""
        until = time.monotonic() + seconds
        while not self._interrupted():
            left = until - time.monotonic()
            if left <= 0:
                return seconds > 0
            time.sleep(min(left, _LOOK))
        return False


class _Once(Generic[T]):
    """One transaction and its attempts, identified in the store by one token."""

    def __init__(self, lease: Lease, work: Callable[[sa.Connection], T], values: dict[str, Any]) -> None:
        self._lease, self._work, self._values = lease, work, values
        self._token = secrets.token_hex(16)
        self._sent: list[T] = []  # results of attempts whose commit was sent

    def attempt(self, engine: sa.Engine) -> T:
        with engine.begin() as connection:
            if self._sent and self._is_applied(connection):
                return self._sent[-1]
            beat = self._lease.guard(connection, txn=self._token, **self._values)
            value = self._work(connection)
            self._sent.append(value)
        self._lease.committed(beat)
        return value

    def _is_applied(self, connection: sa.Connection) -> bool:
        # locked: waits for an earlier attempt that the server is still committing
        mine = sa.select(pipelines.c.txn).where(pipelines.c.pipeline == self._lease.pipeline)
        return connection.execute(mine.with_for_update()).scalar_one_or_none() == self._token
