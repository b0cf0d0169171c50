"""CASES, section B: recovery, by the real engine in this process. The policy's own arithmetic: tests/recovery."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from lab.recovery_lab import (
    ALL,
    NEVER,
    QUICK,
    TOTAL,
    build,
    events,
    ids,
    in_background,
    keep,
    keeper,
    names,
    status,
    waits,
)
from lab.stored_events import newest_events
from lab.support import Lab, destination, processor, queue
from lab.waiting import wait_until
from pyspark.sql import SparkSession

from conduit_dagster.engine import run_status
from conduit_dagster.engine.operate.subject import ask_start, stop
from conduit_dagster.engine.report import RunProgress, RunResult, StepReport
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.engine.run_status import RunDeath, RunOrigin, report_failure
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.engine.supervisor import run_pipeline
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.recovery.policy import Policy
from conduit_dagster.state.database import make_engine
from conduit_dagster.state.overview import pipeline_rows
from conduit_dagster.state.recovery_state import recovery_rows


@pytest.fixture
def lab(tmp_path: Any, spark: SparkSession) -> Lab:
    return Lab(tmp_path, spark)


def test_b01_b12_b13_b15_a_source_comes_back_and_nothing_is_lost(lab: Lab) -> None:
    build(lab, {"fail-on": "read", "after": 30, "times": "3"})
    result = keep(lab)
    assert (result.status, result.error, result.restart) == ("stopped", None, None)
    assert result.ending == "finished (all input read)"
    assert ids(lab) == ALL
    assert result.progress.read == TOTAL  # over all attempts
    again = ["failed", "waiting", "restarted"]
    assert names(lab) == ["started", *again, *again, *again, "recovered", "stopped"]
    told = events(lab)
    waits = [detail for event, detail in told if event == "waiting"]
    assert [(wait["attempt"], wait["delay"]) for wait in waits] == [(1, 0.05), (2, 0.1), (3, 0.2)]
    failed = [detail for event, detail in told if event == "failed"]
    assert all(one["node"] == "p:in" and one["code"] and one["run"] == "run-1" for one in failed)
    assert [one["attempt"] for one in failed] == [0, 1, 2]
    assert [detail["attempt"] for event, detail in told if event == "recovered"] == [3]


def test_b01_a_restart_never_begins_before_its_time(lab: Lab) -> None:
    build(lab, {"fail-on": "read", "times": "4"})
    keep(lab)
    with lab.store() as database:
        rows = list(reversed(newest_events(database, "p", 1000)))
    waits = [row["detail"]["restart_at_ns"] for row in rows if row["event"] == "waiting"]
    begun = [row["at_ns"] for row in rows if row["event"] == "restarted"]
    assert len(waits) == len(begun) == 4
    assert all(at >= due for due, at in zip(waits, begun, strict=True))


def test_b04_without_retries_the_first_error_is_the_last(lab: Lab) -> None:
    build(lab, {"fail-on": "read", "times": "once"})
    result = keep(lab, Policy(max_retries=0))
    assert (result.status, result.restart) == ("degraded", None)
    assert names(lab) == ["started", "failed", "degraded"]
    ((_, given_up),) = [one for one in events(lab) if one[0] == "degraded"]
    assert "max-retries" in given_up["given_up"]


def test_b02_the_retries_of_a_window_are_spent(lab: Lab) -> None:
    build(lab, {"fail-on": "read", "times": "always"})
    result = keep(lab, Policy(min_delay=0.05, max_delay=0.4, max_retries=2))
    assert result.status == "degraded"
    assert names(lab).count("restarted") == 2
    with lab.store() as database:
        error = pipeline_rows(database)["p"]["error"]
    assert error["node"] == "p:in"
    assert "restarted 2 times" in error["given_up"]


@pytest.mark.parametrize("dlq", [queue(3, 1), {"plugin": "log", "window-size": 1}], ids=["threshold", "nobody"])
def test_b06_what_no_restart_can_help_is_degraded_at_once(lab: Lab, dlq: dict[str, Any]) -> None:
    build(
        lab,
        processors=[processor("no", "error", "after.id < 4", message="never")],
        **{"dead-letter-queue": {**dlq, "window-nack-threshold": dlq.get("window-nack-threshold", 0)}},
    )
    result = keep(lab)
    assert result.status == "degraded"
    assert result.error is not None
    assert result.error.fatal
    assert names(lab) == ["started", "failed", "degraded"]


@pytest.mark.parametrize(
    ("source", "out"),
    [
        ({"fail-on": "open", "times": "2"}, {}),
        ({}, {"fail-on": "open", "times": "2"}),
        ({}, {"fail-on": "write", "times": "2"}),
        ({}, {"fail-on": "publish", "times": "2"}),
        ({}, {"fail-on": "ack", "times": "2"}),
        ({"fail-on": "ack", "times": "2"}, {}),
    ],
    ids=["source open", "open", "write", "publish", "ack", "source ack"],
)
def test_b07_errors_of_connectors_are_recovered_with_backoff(lab: Lab, source: Any, out: Any) -> None:
    build(lab, source, out)
    result = keep(lab)
    assert (result.status, ids(lab)) == ("stopped", ALL)
    assert names(lab).count("restarted") == 2


def test_b07_a_destinations_nack_that_the_queue_does_not_take_is_recovered(lab: Lab) -> None:
    build(
        lab,
        {},
        {"fail-on": "write", "mode": "nack", "times": "once"},
        **{"dead-letter-queue": {"plugin": "log", "window-size": 1, "window-nack-threshold": 0}},
    )
    result = keep(lab)
    assert (result.status, ids(lab)) == ("stopped", ALL)
    assert "recovered" in names(lab)


def test_b07_an_error_of_the_dead_letter_queue_is_recovered(lab: Lab) -> None:
    letters = {"plugin": "chaos", "settings": {"path": "dead.jsonl", "fail-on": "publish", "times": "once"}}
    build(
        lab,
        processors=[processor("no", "error", "after.id == 7", message="never")],
        **{"dead-letter-queue": {**letters, "window-size": 0}},
    )
    result = keep(lab)
    assert (result.status, ids(lab)) == ("stopped", [i for i in ALL if i != 7])
    assert names(lab).count("restarted") == 1
    assert len(lab.lines("dead.jsonl")) == 1


@pytest.mark.parametrize("force", [False, True])
def test_b09_a_stop_is_no_failure(lab: Lab, force: bool) -> None:
    build(lab)
    flag = StopFlag()

    def stop_at_once(step: StepReport, progress: RunProgress) -> None:
        flag.force() if force else flag.request("user")

    result = keep(lab, flag=flag, observe=stop_at_once)
    assert (result.status, result.reason, result.restart) == ("degraded" if force else "stopped", "user", None)
    assert "waiting" not in names(lab)


ASKING = """
from pathlib import Path
from conduit_dagster.sdk import Processor
from conduit_dagster.recovery.errors import FatalError, TransientError

def ask(record):
    away = Path("FOLDER") / "away"
    if record.after["id"] == 41 and away.exists():
        away.unlink()
        raise TransientError("the service does not answer", code=503)
    if record.after["id"] == 43:
        raise FatalError("the service does not know it", code="asking.unknown")
    return record

class Asking(Processor):
    name = "asking"

    def process(self, record):
        return ask(record)

class Block(Processor):
    name = "asking.block"

    def process_block(self, records):
        return [record if record.after["id"] == 43 else ask(record) for record in records]
"""


@pytest.mark.parametrize(("plugin", "refused"), [("asking", [43]), ("asking.block", [])])
def test_b07_a_transient_error_of_a_processor_is_recovered_and_no_record_is_nacked(
    lab: Lab, plugin: str, refused: list[int]
) -> None:
    """Reference 3, Open questions. Any other error is the record's own (B6)."""
    lab.write("plugins/asking.py", [ASKING.replace("FOLDER", str(lab.root))])
    (lab.root / "away").touch()
    build(lab, processors=[processor("asks", plugin)])
    result = keep(lab)
    assert (result.status, result.error) == ("stopped", None)
    assert ids(lab) == [number for number in ALL if number not in refused]
    assert names(lab) == ["started", "failed", "waiting", "restarted", "recovered", "stopped"]
    (failed,) = [detail for event, detail in events(lab) if event == "failed"]
    assert (failed["code"], failed["node"], failed["fatal"]) == ("503", "p:asks", False)
    assert [(node, payload["id"]) for node, _, payload in lab.letters()] == [("p:asks", number) for number in refused]


@pytest.mark.parametrize("how", ["signal", "elsewhere"])
def test_b10_a_stop_while_a_restart_is_pending_wins(lab: Lab, how: str) -> None:
    build(lab, {"fail-on": "read", "times": "always"})
    flag = StopFlag()
    thread, results = in_background(lambda: keep(lab, NEVER, flag=flag))
    wait_until(lambda: waits(lab), "a restart is pending")
    began = time.monotonic()
    if how == "signal":
        flag.request("user")
    else:
        with lab.store() as database:
            assert stop(database, "p", "operator", False, 10, 90)
    thread.join(120)
    assert time.monotonic() - began < 120 < NEVER.min_delay
    assert [(one.status, one.reason, one.ending) for one in results] == [("stopped", "user", "stopped by the user")]
    assert status(lab) == ("stopped", "user")
    assert not waits(lab)
    assert "restarted" not in names(lab)


def test_a_pending_restart_can_be_had_at_once(lab: Lab) -> None:
    build(lab, {"fail-on": "read", "times": "once"})
    thread, results = in_background(lambda: keep(lab, NEVER))
    wait_until(lambda: waits(lab), "a restart is pending")
    with lab.store() as database:
        assert ask_start(database, "p", "operator", 10.0)
    thread.join(120)
    assert [one.status for one in results] == ["stopped"]
    assert ids(lab) == ALL


def test_a_run_is_stopped_from_elsewhere(lab: Lab) -> None:
    build(lab, {"rate": 5, "records": 1_000_000})
    catalogue = lab.catalogue()
    bound = catalogue.get("p")
    assert bound is not None
    project, flag = catalogue.project, StopFlag()
    spark = lab._spark
    assert spark is not None
    with lab.store() as database:
        options = RunOptions(project.staging_url, log=project.log_url)
        thread, results = in_background(lambda: run_pipeline(bound, spark, database, options, flag))
        try:
            wait_until(lambda: lab.lines("out.jsonl"), "records arrive")
            assert stop(database, "p", "operator", False, 10, 90)
        finally:
            flag.request()
            thread.join(120)
    assert [(one.status, one.reason) for one in results] == [("stopped", "user")]
    assert not stop_again(lab)


def stop_again(lab: Lab) -> bool:
    with lab.store() as database:
        return stop(database, "p", "operator", False, 10, 10)


def test_b11_a_restart_happens_once_whoever_asks_for_it(lab: Lab) -> None:
    """Two daemons launched it: the store accepts it once."""
    build(lab, {"fail-on": "read", "times": "once"})
    with keeper(lab) as one:
        first = one.once(lambda: lab._spark, None)  # type: ignore[arg-type, return-value]
        assert first.restart is not None
        number = first.restart.failure
    results = []
    for run in ("run-2", "run-3"):
        with keeper(lab) as one:
            one._options = RunOptions(
                one._options.staging, drain=True, log=one._options.log, origin=RunOrigin(QUICK, run, number)
            )
            results.append(one.once(lambda: lab._spark, first.restart.at_ns))  # type: ignore[arg-type, return-value]
    assert [(one.status, one.error) for one in results] == [("stopped", None), ("stopped", None)]
    assert [detail["run"] for event, detail in events(lab) if event == "restarted"] == ["run-2"]
    assert ids(lab) == ALL


def test_a_dead_run_is_reported_once_and_waited_after(lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    with lab.store() as database:
        died = TransientError("it died", code="run.died")
        failed = report_failure(database, "p", RunDeath("run-9", died), Policy())
        assert failed is not None
        assert (failed.status, failed.failure) == ("recovering", 1)
        assert failed.wait is not None
        assert failed.wait.delay == 1.0
        state = recovery_rows(database)["p"]
    assert (state.reported, state.failure, state.restart_at_ns) == ("run-9", 1, failed.wait.at_ns)


def test_another_runs_lease_is_no_failure(lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    with lab.store() as database:
        held = TransientError("another run has it", code="lease.held")
        assert report_failure(database, "p", RunDeath("run-9", held), Policy()) is None
        assert recovery_rows(database)["p"].reported == "run-9"
    assert status(lab) == ("stopped", "system")


def test_a_store_that_does_not_answer_is_waited_for(lab: Lab) -> None:
    """Nothing could be recorded: the process counts by itself."""
    build(lab)
    catalogue = lab.catalogue()
    bound = catalogue.get("p")
    assert bound is not None
    assert lab._spark is not None
    nowhere = make_engine("postgresql://nobody:nothing@127.0.0.1:1/none?connect_timeout=1")
    origin = RunOrigin(QUICK, "run-1")
    options = RunOptions(catalogue.project.staging_url, drain=True, patience=0.1, origin=origin)
    result = run_pipeline(bound, lab._spark, nowhere, options, StopFlag())
    assert result.status == "recovering"
    assert result.restart is not None
    assert (result.restart.failure, result.restart.attempt, result.restart.delay) == (None, 1, 0.05)
    again = RunOrigin(QUICK, "run-1", past=result.restart.past)
    result = run_pipeline(
        bound, lab._spark, nowhere, RunOptions(options.staging, patience=0.1, origin=again), StopFlag()
    )
    assert result.restart is not None
    assert (result.restart.attempt, result.restart.delay) == (2, 0.1)
    # the store is back: it is still recovering, until a record is through
    origin = RunOrigin(QUICK, "run-1", past=result.restart.past)
    seen: list[str] = []
    with lab.store() as database:
        back = RunOptions(options.staging, drain=True, origin=origin)
        look = lambda step, progress: seen.append(status(lab)[0])  # noqa: E731
        assert run_pipeline(bound, lab._spark, database, back, StopFlag(), look).error is None
    assert names(lab) == ["started", "recovered", "stopped"]
    assert [detail["attempt"] for event, detail in events(lab) if event == "recovered"] == [2]
    assert seen[-1] == "running"


@pytest.mark.parametrize("set_back_s", [0, 86_400])
def test_a_window_without_an_error_ends_a_recovery(lab: Lab, set_back_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No records come, and none fails. A clock that is set back does not stretch the window."""
    clock = SimpleNamespace(**vars(time))
    clock.time_ns = lambda: time.time_ns() - set_back_s * 10**9
    monkeypatch.setattr(run_status, "time", clock)
    lab.write("in.jsonl", [])
    lab.pipeline(connectors=[{**destination(), "id": "out"}, _empty_source()], trigger="continuous")
    flag = StopFlag()
    with lab.store() as database:
        report_failure(database, "p", RunDeath("run-0", TransientError("gone", code="x.y")), QUICK)
        number = recovery_rows(database)["p"].failure
    catalogue = lab.catalogue()
    bound, spark = catalogue.get("p"), lab._spark
    assert bound is not None
    assert spark is not None
    policy = Policy(min_delay=0.05, max_delay=0.4, window=0.5)
    project = catalogue.project
    options = RunOptions(project.staging_url, log=project.log_url, origin=RunOrigin(policy, "run-1", number))
    with lab.store() as database:
        thread, _ = in_background(lambda: run_pipeline(bound, spark, database, options, flag))
        try:
            wait_until(lambda: "recovered" in names(lab), "it recovered")
            assert status(lab)[0] == "running"
        finally:
            flag.request()
            thread.join(120)
        rows = {row["event"]: row for row in newest_events(database, "p", 1000)}
    # the restart was recovering until its window was over, and not a step was made in it; the window begins with the
    # run, which here does not wait until it is due
    assert rows["recovered"]["at_ns"] - rows["restarted"]["at_ns"] >= policy.window * 1e9


def _empty_source() -> dict[str, Any]:
    return {"id": "in", "type": "source", "plugin": "file", "settings": {"path": "./in.jsonl"}}


def test_the_first_error_of_an_outage_is_kept(lab: Lab) -> None:
    build(lab, {"fail-on": "read", "times": "once", "code": "503"}, {"fail-on": "open", "times": "once", "code": "504"})
    seen: list[Any] = []

    def look(result: RunResult) -> None:
        with lab.store() as database:
            seen.append(pipeline_rows(database)["p"]["error"])

    keep(lab, tell=look)
    first = {error["code"] for error in seen if error is not None}
    assert len(first) == 1
    with lab.store() as database:
        assert pipeline_rows(database)["p"]["error"] is None
