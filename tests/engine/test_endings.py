"""Errors at the very end of a run or of a job: what was done before counts, and nothing stays behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa
from lab.kills import Crash, at, crash, hooked
from lab.scripted import Script, scripted
from lab.stopping import forced_stop_once
from lab.support import DECODE, Crashes, Lab, destination, processor, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.engine.operate.pipeline_lock import owned, take_lease
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.engine.run_status import RunOrigin
from conduit_dagster.engine.stop import Reason, StopFlag
from conduit_dagster.spark import connect
from conduit_dagster.state import tables
from conduit_dagster.state.lease import LeaseLost, acquire
from conduit_dagster.state.overview import pipeline_rows
from conduit_dagster.state.recovery_state import recovery_rows
from conduit_dagster.state.store import PipelineStore

BAD_CLOSE = """
from conduit_dagster.connectors.file.destination import FileDestination

class Bad(FileDestination):
    name = "bad"

    def close(self):
        raise OSError("connection reset by peer")
"""
NOTED = """
from pathlib import Path

from conduit_dagster.connectors.file.destination import FileDestination

class Bad(FileDestination):
    name = "bad"

    def note(self, word):
        with (Path(self.context.root) / word).open("a") as file:
            print(id(self), file=file)

    def publish(self, delivery):
        self.note("opened")
        return super().publish(delivery)

    def close(self):
        self.note("closed")
"""
SLOW = """
import time
from pathlib import Path

from conduit_dagster.sdk import ConnectorSettings
from conduit_dagster.sdk.destination import DirectDestination, Sender

class SlowSender(Sender):
    def __init__(self, destination, task):
        self.root, self.hash = Path(destination.context.root), task.hash

    def send(self, records, first):
        run = "first" if (self.root / "slow").exists() else "second"
        end = time.monotonic() + (60 if run == "first" else 0)
        with (self.root / "sent").open("a") as file:
            while True:
                print(run, file=file, flush=True)
                if time.monotonic() >= end:
                    break
                time.sleep(0.02)

class Bad(DirectDestination):
    name = "bad"
    Settings = ConnectorSettings

    def sender(self, task):
        return SlowSender(self, task)
"""
PANIC = """
from conduit_dagster.connectors.file.destination import FileDestination

class PanicException(BaseException):
    pass

class Bad(FileDestination):
    name = "bad"

    def publish(self, delivery):
        raise PanicException("a library's own end")
"""


def with_plugin(lab: Lab, text: str, **more: Any) -> None:
    (lab.root / "plugins").mkdir()
    (lab.root / "plugins" / "bad.py").write_text(text)
    lab.write("in.jsonl", [{"i": i} for i in range(3)])
    lab.pipeline(connectors=[source(), {**destination(), "plugin": "bad"}], processors=[DECODE], **more)


def test_a_destination_that_can_not_be_closed_costs_nothing(lab: Lab) -> None:
    with_plugin(lab, BAD_CLOSE)
    before = set(threading.enumerate())  # of other tests in this process
    for _ in range(2):
        assert lab.run().error is None
    assert len(lab.lines("out.jsonl")) == 3
    assert not [thread for thread in threading.enumerate() if thread.name == "lease-p" and thread not in before]


def test_a_replay_closes_the_destinations_that_it_has_used(lab: Lab) -> None:
    with_plugin(lab, NOTED, **{"dead-letter-queue": queue()})
    lab.write("in.jsonl", ["no JSON"])
    assert lab.run().error is None
    assert len(lab.letters()) == 1
    lab.pipeline(connectors=[source(), {**destination(), "plugin": "bad"}])
    assert lab.replay()["replayed"] == 1
    assert lab.lines("opened")
    assert set(lab.lines("opened")) <= set(lab.lines("closed"))


def test_a_step_counts_although_its_ack_fails(lab: Lab) -> None:
    """It is done, and no later run counts it."""
    settings = {"records": "30", "fail-on": "ack", "after": "10", "times": "once"}
    numbers = {"id": "in", "type": "source", "plugin": "chaos", "settings": settings}
    lab.pipeline(connectors=[numbers, destination()], delivery={"batch-size": 10})
    result = lab.run()
    assert result.error is not None
    assert (result.progress.read, result.progress.delivered["out"]) == (20, 20)
    rest = lab.run()
    assert (rest.error, rest.progress.read) == (None, 10)
    assert len(lab.lines("out.jsonl")) == 30


def test_a_library_that_raises_past_exception_is_a_failure(lab: Lab) -> None:
    """As Rust's panics do."""
    with_plugin(lab, PANIC)
    result = lab.run()
    assert result.status == "degraded"
    assert result.error is not None and "PanicException: a library's own end" in result.error.message


def test_a_sender_that_can_not_be_closed_keeps_its_acks(lab: Lab) -> None:
    script = Script(lab)
    plugin = lab.root / "plugins" / "scripted.py"
    closing = "    def close(self):\n        raise ConnectionResetError('reset')\n\n    def _answers"
    plugin.write_text(plugin.read_text().replace("    def _answers", closing))
    script.says()
    lab.write("in.jsonl", [{"i": i} for i in range(5)])
    lab.pipeline(connectors=[source(), scripted()], processors=[DECODE], **{"dead-letter-queue": queue()})
    assert lab.run().error is None
    assert lab.run().error is None
    assert script.values() == [0, 1, 2, 3, 4]


def test_a_nack_that_is_no_valid_text_is_recorded(lab: Lab) -> None:
    """As the answer of a server that is not UTF-8."""
    script = Script(lab)
    plugin = lab.root / "plugins" / "scripted.py"
    answer = 'b"caf\\xe9 ".decode("utf-8", "surrogateescape") + str(v)'
    plugin.write_text(plugin.read_text().replace('f"no {v}"', answer))
    script.says(refuse=[2])
    lab.write("in.jsonl", [{"i": i} for i in range(5)])
    lab.pipeline(connectors=[source(), scripted()], processors=[DECODE], **{"dead-letter-queue": queue()})
    assert lab.run().error is None
    assert "caf\\udce9" in lab.letters()[0][1]


def test_a_step_that_was_only_planned_gives_way_to_other_settings(lab: Lab, crashes: Crashes) -> None:
    """With ``log: records`` its plan counts records: a header is none any more."""
    lab.write("in.jsonl", ["a,b", "1,2", "3,4"])
    lab.pipeline(connectors=[source(), destination()], delivery={"log": "records"})
    crashes(lab, "after-plan")
    corrected = source()
    corrected["settings"]["header"] = True
    lab.pipeline(connectors=[corrected, destination()], delivery={"log": "records"})
    assert lab.run().error is None
    assert (lab.root / "out.jsonl").read_text().splitlines() == ["1,2", "3,4"]


@pytest.mark.parametrize("header", [False, True])
def test_offsets_go_on_without_gap_where_a_planned_step_has_other_records_now(lab: Lab, header: bool) -> None:
    """Two steps are planned, none is prepared; then the first one has a record more or less than when it was staged."""
    planned, count = threading.Event(), 0

    def build(header: bool) -> None:
        numbers = source()
        numbers["settings"]["header"] = str(header).lower()
        refusing = processor("no", "error", message="no")
        more = {"delivery": {"batch-size": 3, "max-in-flight": 2}, "dead-letter-queue": queue()}
        lab.pipeline(connectors=[numbers, destination()], processors=[refusing], **more)

    def hook(point: str, _: str) -> None:
        nonlocal count
        count += point == "after-plan"
        if count == 2:
            planned.set()
        if point == "before-prepare":
            assert planned.wait(120)
            crash()

    lab.write("in.jsonl", [f"line {i}" for i in range(12)])
    build(header)
    with hooked(hook), pytest.raises(Crash):
        lab.run()
    build(not header)
    assert lab.run().error is None
    letters = [int(row["metadata"]["conduit.dlq.offset"]) for row in lab.documents("dead.jsonl")]
    assert letters == list(range(12 if header else 11))


def test_a_runs_jobs_are_known_whoever_had_the_lease_since(lab: Lab) -> None:
    """A sensor, an operator's command, or a successor that was killed before it began: they may still be sending."""
    lab.write("in.jsonl", [])
    lab.pipeline(connectors=[source(), destination()])
    options = RunOptions.of(lab.catalogue().project)
    with lab.store() as database:
        first = acquire(database, "p", 1.0)
        PipelineStore(database, first).keep_jobs({"session": "s", "user": "u", "tag": "t"})
        first.release()
        for _ in range(2):
            take_lease("p", database, options).release()
        last = acquire(database, "p", 1.0)
        try:
            assert PipelineStore(database, last).last_jobs() == {"session": "s", "user": "u", "tag": "t"}
        finally:
            last.release()


def test_one_that_was_frozen_does_not_take_jobs_of_a_later_owner_for_earlier_ones(lab: Lab) -> None:
    """It would end them."""
    with lab.store() as database:
        frozen = acquire(database, "p", 1.0)
        with database.begin() as connection:  # the lease has timed out
            connection.execute(sa.update(tables.pipelines).values(owner=""))
        later = acquire(database, "p", 1.0)
        try:
            PipelineStore(database, later).keep_jobs({"session": "s", "user": "u", "tag": "t"})
            with pytest.raises(LeaseLost):
                PipelineStore(database, frozen).last_jobs()
        finally:
            frozen.release()
            later.release()


def test_a_commands_jobs_are_known_to_the_next_owner(lab: Lab, spark: SparkSession) -> None:
    """A killed one may still be sending."""
    lab.write("in.jsonl", [])
    lab.pipeline(connectors=[source(), destination()])
    assert lab.run().error is None
    bound, options = lab.catalogue().get("p"), RunOptions.of(lab.catalogue().project)
    assert bound is not None
    with lab.store() as database, owned(bound, database, options, lambda: spark, "a test") as lock:
        lock.store.keep_jobs({"session": "s", "user": "u", "tag": "of the last run"})
        lock.jobs.slots()
        assert lock.store.last_jobs() == lock.jobs.whereabouts()


@pytest.mark.parametrize("name", ["p", "another"])
def test_a_pipeline_without_jobs_has_none(lab: Lab, name: str) -> None:
    with lab.store() as database:
        lease = acquire(database, name, 1.0)
        try:
            assert PipelineStore(database, lease).last_jobs() == {}
        finally:
            lease.release()


@pytest.mark.parametrize(("reason", "asked"), [("system", "start"), ("user", "")])
def test_an_available_now_pipeline_that_the_system_stopped_is_to_be_started_again(
    lab: Lab, reason: Reason, asked: str
) -> None:
    """A drained one has done its work; one that was stopped on its way has not."""
    lab.write("in.jsonl", [{"i": i} for i in range(100)])
    lab.pipeline(connectors=[source(), destination()], trigger="available-now", delivery={"batch-size": 10})
    flag = StopFlag()
    with at("after-ack", lambda: flag.request(reason)):
        result = lab.run(stop=flag)
    assert (result.status, result.reason, result.progress.read < 100) == ("stopped", reason, True)
    with lab.store() as database:
        assert recovery_rows(database)["p"].asked == asked
    assert lab.run().error is None
    with lab.store() as database:
        assert recovery_rows(database)["p"].asked == ""
    assert len(lab.lines("out.jsonl")) == 100


def test_a_drain_by_hand_leaves_it_stopped_by_the_user(lab: Lab) -> None:
    lab.write("in.jsonl", [{"i": i} for i in range(20)])
    lab.pipeline(connectors=[source(), destination()], trigger="continuous", delivery={"batch-size": 10})
    flag = StopFlag()
    with at("after-ack", flag.request):
        assert lab.run(stop=flag, drain=False, origin=RunOrigin(run="r1")).reason == "user"
    result = lab.run(origin=RunOrigin(run="r2"))
    assert (result.status, result.drained, len(lab.lines("out.jsonl"))) == ("stopped", True, 20)
    with lab.store() as database:
        row = pipeline_rows(database)["p"]
        assert (row["status"], row["reason"]) == ("stopped", "user")


@pytest.mark.slow
def test_a_cancelled_sender_and_that_of_the_next_run_do_not_send_side_by_side(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled task of Spark goes on for some seconds; on a busy machine for more than usual."""
    monkeypatch.setattr(connect, "_WORKERS_END", connect._WORKERS_END + 15)
    with_plugin(lab, SLOW)
    lab.pipeline(connectors=[source(), {**scripted(plugin="bad"), "settings": {}}], processors=[DECODE])
    slow, sent = lab.root / "slow", lab.root / "sent"
    slow.touch()
    forced_stop_once(lab, sent.exists, "it sends")
    slow.unlink()
    assert lab.run().error is None
    lines = sent.read_text().split()
    assert lines == sorted(lines)
    assert lines[-1] == "second"


@pytest.mark.parametrize("ends", ["by an error", "by a stop"])
def test_a_step_that_was_staged_behind_the_last_one_leaves_no_staging(lab: Lab, ends: str) -> None:
    """With more than one step in flight; its folder stayed until the pipeline was started again."""
    lab.write("in.jsonl", [{"i": i} for i in range(6)])
    lab.pipeline(connectors=[source(), destination()], delivery={"max-in-flight": 2, "batch-size": 2})
    ahead, stop, passed = threading.Event(), StopFlag(), list[str]()

    def hook(point: str, _: str) -> None:
        passed.append(point)
        if passed.count("after-stage") == 2:
            ahead.set()
        if point == "after-prepare" and passed.count(point) == 1:
            assert ahead.wait(60)
            if ends == "by an error":
                raise OSError("no answer")
            stop.request("user")

    with hooked(hook):
        error = lab.run(stop=stop).error
    assert (error is not None) == (ends == "by an error")
    left = [path.name for path in (lab.root / ".conduit" / "staging" / "p").iterdir()]
    assert [name.split("-")[1] for name in left] == (["000000000001"] if ends == "by an error" else [])
    assert lab.run().error is None
    assert len(lab.lines("out.jsonl")) == 6
