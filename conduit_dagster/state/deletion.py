"""Deletion of everything that the state store keeps of one pipeline, except what protects later deliveries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import sqlalchemy as sa

from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.recovery.policy import FRESH, PipelineStatus
from conduit_dagster.state.dead_letters import up_to
from conduit_dagster.state.history import DELETED, DELETING, PROVISIONED, newest_event, record_event
from conduit_dagster.state.lease import Transactions
from conduit_dagster.state.readers import forget_left
from conduit_dagster.state.recovery_state import write_recovery
from conduit_dagster.state.tables import (
    consumers,
    dead_letter_parts,
    dead_letters,
    generations,
    history,
    metadata,
    pipelines,
    recoveries,
    sources,
)

_KEPT: Final = {pipelines, recoveries, generations, history}
"""The epoch fences earlier owners, step numbers and generations are never reused, and the history is the audit log.

Where its last jobs ran is kept as well (:meth:`PipelineStore.last_jobs`): the next run ends those that still run.
"""
_IN_PIECES: Final = {dead_letters, dead_letter_parts}
_AT_ONCE: Final = 5_000
"""Dead letters deleted per transaction: other pipelines wait for it."""


def delete_state(
    transactions: Transactions, pipeline: str, check: Callable[[sa.Connection], None], **detail: object
) -> None:
    """Delete the pipeline's state; it is then stopped, and its next run reads its sources from their beginning.

    May be killed between two transactions and repeated. :func:`record_deletion` ends it. ``check``: called in the first
    transaction, before anything is deleted. ``detail``: what goes, for the history, which has it even if nothing
    repeats a killed deletion; empty if nothing goes any more.
    """

    def work(connection: sa.Connection) -> None:
        check(connection)
        _delete_all_but_letters(connection, pipeline, detail)

    transactions.run(work)
    reached("after-rows", pipeline)
    delete_letters(transactions, pipeline)


def delete_letters(transactions: Transactions, pipeline: str) -> None:
    """Delete the dead letters of a pipeline whose other state is deleted. May be killed and repeated."""
    while transactions.run(partial(_delete_some_letters, pipeline=pipeline)):
        pass


def _delete_all_but_letters(connection: sa.Connection, pipeline: str, detail: Mapping[str, object]) -> None:
    if detail:
        record_event(connection, pipeline, DELETING, **detail)
    for table in metadata.sorted_tables:
        if "pipeline" in table.c and table not in _KEPT | _IN_PIECES:
            connection.execute(sa.delete(table).where(table.c.pipeline == pipeline))
    # a generation stays taken, but no source may go on at a position that was deleted
    left = sa.update(generations).where(generations.c.pipeline == pipeline)
    connection.execute(left.values(position=""))
    forget_left(connection, pipeline)
    stopped = {"status": PipelineStatus.STOPPED, "reason": "user", "error": "", "window": "", "file": ""}
    connection.execute(sa.update(pipelines).where(pipelines.c.pipeline == pipeline).values(**stopped))
    write_recovery(connection, pipeline, past=FRESH, restart_at_ns=0, cause=None, asked="")


def _delete_some_letters(connection: sa.Connection, pipeline: str) -> int:
    """Return the number of rows deleted; 0 once there are none."""
    mine = dead_letters.c.pipeline == pipeline
    order = (dead_letters.c.step, dead_letters.c.number)
    some = sa.select(*order).where(mine).order_by(*order).limit(_AT_ONCE).subquery()
    last = connection.execute(sa.select(some).order_by(some.c.step.desc(), some.c.number.desc()).limit(1)).first()
    if last is None:
        return connection.execute(sa.delete(dead_letter_parts).where(dead_letter_parts.c.pipeline == pipeline)).rowcount
    return connection.execute(sa.delete(dead_letters).where(mine, up_to((last.step, last.number)))).rowcount


def record_deletion(connection: sa.Connection, pipeline: str, by: str, **detail: object) -> None:
    """Record that the pipeline was deleted: until its next run, lists, metrics and alerts leave it out."""
    record_event(connection, pipeline, DELETED, by=by, **detail)


def cut_off(connection: sa.Connection, pipeline: str) -> dict[str, Any] | None:
    """Return what the history has of a deletion whose command was killed, or lost its lease, before it ended.

    None if there is none, or if anything was registered since: then what is there may be the pipeline's own.
    """
    for table in (sources, consumers):
        if connection.execute(sa.select(table.c.pipeline).where(table.c.pipeline == pipeline).limit(1)).first():
            return None
    newest = newest_event(connection, pipeline, DELETING, DELETED, PROVISIONED)
    return newest.detail if newest is not None and newest.event == DELETING else None
