"""A run that is kept begins once an operator's command has given the lease back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import sqlalchemy as sa
from lab.recovery_lab import ALL, build, ids, in_background, keep
from lab.support import Lab
from lab.waiting import wait_until
from structlog.testing import capture_logs

from conduit_dagster.engine.operate.pipeline_lock import take_lease
from conduit_dagster.engine.report import RunResult
from conduit_dagster.engine.run_options import Ended, Listen, RunOptions, ignore_run
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.state.database import reading
from conduit_dagster.state.recovery_state import record_request
from conduit_dagster.state.tables import pipelines


@contextmanager
def waiting(
    lab: Lab, flag: StopFlag, listen: Listen = ignore_run
) -> Iterator[tuple[threading.Thread, list[RunResult]]]:
    """Yield a run that has found a command at work; the command ends with the block."""
    build(lab)
    with lab.store() as database, capture_logs() as logged:
        # its heartbeats show a run that looks that it is held
        lease = take_lease("p", database, replace(RunOptions.of(lab.catalogue().project), lease_seconds=1))
        try:
            run = in_background(lambda: keep(lab, flag=flag, listen=listen))
            wait_until(lambda: "waiting for a command" in [row["event"] for row in logged], "it waits")
            yield run
        finally:
            lease.release()


def await_another_look(lab: Lab) -> None:
    """Wait for heartbeats of the command: a run looks again within six."""
    with lab.store() as database:
        first = heartbeats(database)
        wait_until(lambda: heartbeats(database) >= first + 12, "it has looked again")


def heartbeats(database: sa.Engine) -> int:
    with reading(database) as connection:
        return connection.execute(sa.select(pipelines.c.heartbeat)).scalar_one()


def test_it_begins_once_the_command_has_ended(lab: Lab) -> None:
    with waiting(lab, StopFlag()) as (thread, results):
        assert not results
    thread.join()
    assert (results[0].status, results[0].error, ids(lab)) == ("stopped", None, ALL)


def test_it_may_be_stopped_before(lab: Lab) -> None:
    flag = StopFlag()
    with waiting(lab, flag) as (thread, results):
        flag.request("user")
        thread.join()
    assert (results[0].status, results[0].reason, results[0].error) == ("stopped", "user", None)
    assert ids(lab) == []


def test_listeners_hear_of_no_attempt_while_it_waits(lab: Lab) -> None:
    heard: list[str] = []

    def listen(*about: object) -> Ended:
        heard.append("begun")
        return lambda result: heard.append(result.status)

    with waiting(lab, StopFlag(), listen) as (thread, _):
        await_another_look(lab)
    thread.join()
    assert heard == ["begun", "running", "begun", "stopped"]


def test_it_leaves_a_pipeline_that_another_run_has_taken_meanwhile(lab: Lab) -> None:
    with waiting(lab, StopFlag()) as (thread, results), lab.store() as database:
        with database.begin() as connection:
            owner = connection.execute(sa.select(pipelines.c.owner)).scalar_one()
            connection.execute(sa.update(pipelines).values(owner=owner.replace("command", "run")))
        thread.join(120)
    assert (results[0].status, type(results[0].error), ids(lab)) == ("running", TransientError, [])


def test_a_stop_asked_for_while_it_waits_ends_it(lab: Lab) -> None:
    with waiting(lab, StopFlag()) as (thread, results):
        with lab.store() as database:
            record_request(database, "p", "force", "the test")
        await_another_look(lab)
    thread.join()
    assert (results[0].status, results[0].error, ids(lab)) == ("stopped", None, [])
