"""Who asked a run to end decides whether its pipeline is restarted."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dagster as dg
import pytest
from dagster._daemon.monitoring.run_monitoring import check_run_timeout

from conduit_dagster.assets.stopping import ExitWatchdog, Signals, StopWatcher, was_terminated
from conduit_dagster.engine.stop import StopFlag


@dg.job
def job() -> None:
    """Some job for a run."""


@pytest.fixture
def run(folder: object) -> tuple[dg.DagsterInstance, str]:
    instance: dg.DagsterInstance = folder.instance  # type: ignore[attr-defined]
    return instance, instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED).run_id


Run = tuple[dg.DagsterInstance, str]


def _warden(run: Run, signals: Signals, end_after: float = 60) -> tuple[StopWatcher, StopFlag]:
    stop = StopFlag()
    return StopWatcher(run, stop, signals, end_after), stop


def test_a_signal_is_counted_and_raises_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert signals.count == 2
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGTERM)])
def test_a_signal_stops_also_while_dagsters_storage_hangs(
    signals: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's handler does not run while the main thread is in a call that does not return."""
    monkeypatch.setattr("conduit_dagster.assets.stopping._ANSWER", 0.05)
    stop, storage = StopFlag(), tmp_path / "storage.db"
    holder = sqlite3.connect(storage, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")

    def interrupt() -> None:
        for number in signals:
            os.kill(os.getpid(), number)
        stop.wait(20)
        if len(signals) > 1:
            stop.wait_forced(20)
        holder.execute("COMMIT")

    with Signals(), ExitWatchdog(stop, 60), ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt)
        sqlite3.connect(storage, timeout=30).execute("CREATE TABLE runs (id)")
    assert (stop.requested, stop.reason, stop.forced) == (True, "system", len(signals) > 1)
    holder.close()


def test_the_watchdog_takes_a_shutdown_timeout_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """``poll`` takes no more than 24 days: the watchdog's thread ended, with a stack trace."""
    monkeypatch.setattr("conduit_dagster.assets.stopping._ANSWER", 0.05)
    stop = StopFlag()
    with Signals(), ExitWatchdog(stop, 30 * 86_400.0):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(10)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait_forced(10)


HANGING = """
import sqlite3, sys
from conduit_dagster.assets import stopping
from conduit_dagster.engine.stop import StopFlag
stopping._ANSWER, stop = 0.05, StopFlag()
holder = sqlite3.connect(sys.argv[1], isolation_level=None)
holder.execute("BEGIN EXCLUSIVE")
with stopping.Signals(), stopping.ExitWatchdog(stop, 0.1):
    print("ready", flush=True)
    sqlite3.connect(sys.argv[1], timeout=60).execute("CREATE TABLE runs (id)")
"""


def test_a_process_ends_whose_main_thread_hangs(tmp_path: Path) -> None:
    """As in a call of Dagster's storage."""
    words = [sys.executable, "-c", HANGING, str(tmp_path / "storage.db")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "a stop hangs" in said


def test_a_signal_alone_stops_as_the_system(run: Run) -> None:
    signals = Signals()
    warden, stop = _warden(run, signals)
    warden.tick()
    assert not stop.requested
    signals.count = 1
    warden.tick()
    assert (stop.requested, stop.forced, stop.reason, warden.terminated) == (True, False, "system", False)


def test_a_second_signal_forces(run: Run) -> None:
    signals = Signals()
    warden, stop = _warden(run, signals)
    signals.count = 2
    warden.tick()
    assert stop.forced


def test_a_signal_after_a_request_in_dagster_stops_as_the_user(run: Run) -> None:
    signals = Signals()
    warden, stop = _warden(run, signals)
    instance, run_id = run
    instance.report_run_canceling(instance.get_run_by_id(run_id))
    signals.count = 1
    warden.tick()
    assert (stop.reason, warden.terminated) == ("user", True)


def test_a_user_is_known_also_after_the_watchdog_has_stopped_the_run(run: Run) -> None:
    """Dagster's storage hung, and the main thread learns only now who asked: the sensor would start it again."""
    signals = Signals()
    warden, stop = _warden(run, signals)
    instance, run_id = run
    instance.report_run_canceling(instance.get_run_by_id(run_id))
    stop.request("system")
    signals.count = 1
    warden.tick()
    assert (stop.reason, warden.terminated) == ("user", True)


@pytest.mark.parametrize(
    ("report", "by"),
    [("report_run_canceling", "user"), ("report_run_canceled", "user"), ("report_run_failed", "system")],
)
def test_a_run_that_dagster_ended_without_a_signal_is_noticed(
    run: Run, report: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code server may be gone; a finished run must not continue beside its successor.

    Nobody stops the pipeline by Dagster's own verdict, for example on a run's maximum duration.
    """
    monkeypatch.setattr("conduit_dagster.assets.stopping._ASK_EVERY", 0.0)
    warden, stop = _warden(run, Signals())
    instance, run_id = run
    getattr(instance, report)(instance.get_run_by_id(run_id))
    warden.tick()
    assert (stop.requested, stop.reason, warden.terminated) == (True, by, by == "user")


@pytest.mark.parametrize(
    ("longest", "theirs", "by"), [(1, 0, "system"), (0, 1, "system"), (3600, 0, "user"), (1, 0, "user")]
)
def test_a_run_that_dagster_cancels_for_its_runtime_stops_as_the_system(
    longest: int, theirs: int, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster cancels it and then lets it fail. The run may look between the two, or end as cancelled after both.

    ``theirs``: the limit of the daemon, whose settings may be newer than the run's.
    """
    with dg.DagsterInstance.ephemeral(settings={"run_monitoring": {"enabled": True}}) as instance:
        tags = {"dagster/max_runtime": str(longest)} if longest else {}
        run_id = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=tags).run_id
        _begun(instance, run_id, seconds_ago=60)
        signals = Signals()
        warden, stop = _warden((instance, run_id), signals)

        def interrupt(run_id: str) -> bool:
            signals.count = 1
            warden.tick()
            return True

        monkeypatch.setattr(instance.run_launcher, "terminate", interrupt)
        if by == "user":
            instance.report_run_canceling(_record(instance, run_id).dagster_run)
            interrupt(run_id)
        else:
            check_run_timeout(instance, _record(instance, run_id), logging.getLogger(), theirs)
        assert (stop.reason, warden.terminated) == (by, by == "user")
        instance.report_run_canceled(_record(instance, run_id).dagster_run)
        assert was_terminated(instance, _record(instance, run_id)) is (by == "user")


def _begun(instance: dg.DagsterInstance, run_id: str, seconds_ago: float) -> None:
    event = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, "job")
    instance.report_dagster_event(event, run_id, timestamp=time.time() - seconds_ago)


def _record(instance: dg.DagsterInstance, run_id: str) -> dg.RunRecord:
    record = instance.get_run_record_by_id(run_id)
    assert record is not None
    return record


def test_a_moment_without_dagsters_storage_stops_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conduit_dagster.assets.stopping._ASK_EVERY", 0.0)
    warden, stop = _warden(run, Signals())
    with monkeypatch.context() as away:
        away.setattr(run[0], "get_run_record_by_id", _away)
        warden.tick()
    assert not stop.requested
    run[0].report_run_canceled(run[0].get_run_by_id(run[1]))
    warden.tick()
    assert (stop.requested, warden.terminated) == (True, True)


def _away(_: str) -> None:
    raise OSError("the database is locked")


def test_a_run_ends_after_its_time_as_the_system(run: Run) -> None:
    warden, stop = _warden(run, Signals(), end_after=0)
    warden.tick()
    assert (stop.reason, warden.terminated) == ("system", False)
