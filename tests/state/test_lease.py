"""One owner per pipeline: a live one is never pushed aside, a dead or silent one is, and notices."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import sqlalchemy as sa
from lab.leases import change_owner, heartbeat, silence
from lab.waiting import at_once
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.state import tables
from conduit_dagster.state.database import open_database
from conduit_dagster.state.lease import Lease, LeaseHeldByCommand, LeaseLost, acquire
from conduit_dagster.state.status_store import RunStart
from conduit_dagster.state.store import PipelineStore


def test_a_second_owner_is_refused_while_the_first_lives(database: sa.Engine) -> None:
    lease = acquire(database, "p", 1.0)
    with pytest.raises(ConduitError, match="already running") as error:
        acquire(database, "p", 30.0)  # it looks for longer than a heartbeat may take
    assert error.value.code == "lease.held"
    lease.release()
    acquire(database, "p", 1.0).release()


def test_one_that_is_refused_is_told_whether_a_run_or_a_command_has_the_lease(database: sa.Engine) -> None:
    lease = acquire(database, "p", 60.0, by_command=True)
    with pytest.raises(LeaseHeldByCommand, match="a command is at work on pipeline p, in process") as error:
        acquire(database, "p", 60.0, cancelled=lambda: True)
    assert error.value.code == "lease.held"
    lease.release()
    lease = acquire(database, "p", 60.0)
    with pytest.raises(ConduitError, match="already running"):
        acquire(database, "p", 60.0, cancelled=lambda: True)
    lease.release()


def test_of_two_contenders_one_wins(database: sa.Engine) -> None:
    won, refused = list[Lease](), list[ConduitError]()

    def contend(_: int) -> None:
        try:
            won.append(acquire(database, "p", 6.0))  # the others look until its first heartbeat
        except ConduitError as error:
            refused.append(error)

    at_once(contend, 5)
    assert (len(won), len(refused)) == (1, 4)
    won[0].release()


def test_a_stop_while_waiting_takes_nothing(database: sa.Engine) -> None:
    """A second run that is stopped while it waits does not disturb the healthy owner."""
    lease = acquire(database, "p", 30.0)
    with pytest.raises(ConduitError, match="already running"):
        acquire(database, "p", 30.0, cancelled=lambda: True)
    PipelineStore(database, lease).status.begin(RunStart("r"))
    lease.release()


def test_paths_that_a_pipeline_writes_no_more_are_free(database: sa.Engine) -> None:
    """Two destinations may swap their paths, and another pipeline may take what was given up or has a dead owner."""
    lease = acquire(database, "p", 30.0)
    store = PipelineStore(database, lease)
    for thing, consumer in (("/x", "a"), ("/y", "b"), ("/x", "b"), ("/y", "a")):
        assert claim(store, thing, consumer) is None
    other_lease = acquire(database, "q", 30.0)
    other = PipelineStore(database, other_lease)
    assert claim(other, "/x", "out") == ("p", "b")
    store.registering(lambda registry, _: registry.release_others({"/y"}))
    assert claim(other, "/x", "out") is None
    lease.release()
    assert claim(other, "/y", "out") is None
    other_lease.release()


def claim(store: PipelineStore, thing: str, consumer: str) -> tuple[str, str] | None:
    return store.registering(lambda registry, _: registry.claim(thing, consumer))


def test_a_dead_owner_is_replaced_at_once(database: sa.Engine) -> None:
    """On the same machine a dead process is known to be dead, long before its lease expires."""
    lease = acquire(database, "p", 60.0)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    change_owner(database, pid=gone.pid, started="1")
    began = time.monotonic()
    second = acquire(database, "p", 60.0)
    assert time.monotonic() - began < 30
    silence(lease)
    second.release()


def test_a_silent_owner_is_replaced_after_its_time_and_can_decide_nothing_more(database: sa.Engine) -> None:
    first = acquire(database, "p", 0.4)
    silence(first)
    change_owner(database, host="elsewhere", boot="other")
    began = time.monotonic()
    second = acquire(database, "p", 0.4)
    assert time.monotonic() - began >= 0.4
    assert second.epoch == first.epoch + 1
    with pytest.raises(LeaseLost):
        PipelineStore(database, first).status.begin(RunStart("r"))
    PipelineStore(database, second).status.begin(RunStart("r"))
    second.release()


def test_an_owner_that_decides_is_not_silent(database: sa.Engine) -> None:
    """Its thread may get no time in a busy process: each of its transactions beats as well."""
    lease = acquire(database, "p", 60.0)
    silence(lease)
    before = heartbeat(database)
    PipelineStore(database, lease).status.begin(RunStart("r"))
    assert heartbeat(database) > before
    lease.release()


def test_of_two_who_find_the_owner_silent_at_the_same_moment_one_wins(database: sa.Engine) -> None:
    first = acquire(database, "p", 60.0)
    silence(first)
    change_owner(database, host="elsewhere", boot="other")
    won, refused = list[Lease](), list[str]()

    def contend(_: int) -> None:
        try:
            # the new owner's heartbeats come in time for one that looks late
            won.append(acquire(database, "p", 3.0))
        except ConduitError as error:
            refused.append(error.code)

    at_once(contend, 2)
    assert (len(won), refused) == (1, ["lease.held"])
    assert won[0].epoch == first.epoch + 1
    won[0].release()


def test_an_owner_that_is_frozen_inside_a_transaction_blocks_nobody(postgres_url: str) -> None:
    """It holds the pipeline's row; the server ends its transaction, and it notices when it thaws."""
    patient = open_database(postgres_url)
    hasty = open_database(f"{postgres_url}?options=-c%20idle_in_transaction_session_timeout%3D2s")
    frozen = acquire(hasty, "p", 0.4)
    silence(frozen)
    change_owner(patient, host="elsewhere", boot="other")
    with hasty.connect() as connection:
        frozen.guard(connection)
        second = acquire(patient, "p", 0.4)
        with pytest.raises(SQLAlchemyError):
            connection.execute(sa.select(tables.pipelines))
    assert second.epoch == frozen.epoch + 1
    second.release()
    for engine in (patient, hasty):
        engine.dispose()
