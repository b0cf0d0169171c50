"""Since when a pipeline fails, and what is safe: the account of a failure."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from lab.support import DECODE, Lab, destination, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import open_catalogue
from conduit_dagster.engine.report import FailureStory, RunResult, story_of
from conduit_dagster.engine.restart_loop import RestartLoop
from conduit_dagster.engine.run_options import RunOptions, RunRequest
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.recovery.policy import Policy
from conduit_dagster.state.database import open_database
from conduit_dagster.state.lease import acquire
from conduit_dagster.state.status_store import RunStart
from conduit_dagster.state.store import PipelineStore
from conduit_dagster.state.tables import steps

GOOD, BAD = {"i": 1}, "not json"


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    return Lab(tmp_path, spark)


def run(lab: Lab, spark: SparkSession, strategy: str = "exactly-once", window: int = 1) -> RunResult:
    lab.pipeline(
        connectors=[source(), destination()],
        processors=[DECODE],
        delivery={"strategy": strategy},
        **{"dead-letter-queue": queue(window, 0)},
    )
    project = Project.find(lab.root)
    [bound] = open_catalogue(project).bound
    with lab.store() as database:
        request = RunRequest(bound, database, RunOptions.of(project, drain=True), StopFlag())
        return RestartLoop(request).once(lambda: spark, None)


def told(result: RunResult) -> FailureStory:
    assert result.story is not None
    return result.story


def test_it_begins_with_the_first_failure_that_no_success_followed(lab: Lab, spark: SparkSession) -> None:
    lab.write("in.jsonl", [GOOD, GOOD, BAD])
    first = told(run(lab, spark))
    assert first.safe == (
        "2 records were acked in this run; nothing is lost: what is not acked is read or sent again, and delivered once"
    )
    again = told(run(lab, spark))
    assert again.since_ns == first.since_ns
    assert again.safe.startswith("no record was acked in this run; nothing is lost")
    good = run(lab, spark, window=0)
    assert (good.error, good.story) == (None, None)
    lab.write("in.jsonl", [BAD], mode="a")
    later = told(run(lab, spark))
    assert later.since_ns > first.since_ns
    assert later.since.endswith(" UTC")


def test_a_success_after_a_start_by_hand_ends_a_series_of_failures(tmp_path: Path) -> None:
    """It has no event of its own in the history, as a restart's success has."""
    database = open_database(f"sqlite:///{tmp_path}/state.db")
    lease = acquire(database, "p", 30.0)
    status = PipelineStore(database, lease).status
    error = {"code": "x.y", "message": "it broke", "node": "p:in", "place": None, "fix": None, "fatal": True}

    def failed_since(run: str) -> int:
        status.begin(RunStart(run))
        status.failed(error, Policy(), run)
        story = story_of(database, "p", "at-least-once", 0)
        assert story is not None
        return story.since_ns

    first = failed_since("a")
    assert failed_since("b") == first
    done = {"pipeline": "p", "step": 1, "state": "done", "plan": "{}", "decision": "", "planned_ns": 1}
    with database.begin() as connection:
        connection.execute(steps.insert().values(**done, done_ns=time.time_ns()))
    later = failed_since("c")
    assert later > first
    assert failed_since("d") == later
    lease.release()
    database.dispose()


@pytest.mark.parametrize(
    ("code", "is_gone"),
    [
        ("kafka.topic_changed", True),
        ("kafka.truncated", True),
        ("log.missing", True),
        ("mine.gone", True),
        ("postgres.slot_lost", True),
        ("postgres.slot_missing", True),
        ("postgres.slot_moved", True),
        ("postgres.went_back", True),
        ("spark.landing_lost", True),
        ("file.missing", False),
        ("lease.lost", False),
        ("spark.session_lost", False),
    ],
)
def test_an_error_about_lost_data_is_not_told_as_safe(tmp_path: Path, code: str, is_gone: bool) -> None:
    database = open_database(f"sqlite:///{tmp_path}/state.db")
    lease = acquire(database, "p", 30.0)
    status = PipelineStore(database, lease).status
    status.begin(RunStart("a"))
    error = {"code": code, "message": "it broke", "node": None, "place": None, "fix": None, "fatal": True}
    status.failed(error, Policy(), "a")
    story = story_of(database, "p", "exactly-once", 0, code)
    lease.release()
    database.dispose()
    assert story is not None
    assert ("nothing is lost" not in story.safe) == is_gone


@pytest.mark.parametrize(
    ("strategy", "words"),
    [("at-least-once", "some of it may be delivered twice"), ("at-most-once", "is not sent again")],
)
def test_what_is_safe_depends_on_the_guarantee(lab: Lab, spark: SparkSession, strategy: str, words: str) -> None:
    lab.write("in.jsonl", [BAD])
    assert words in told(run(lab, spark, strategy)).safe


def test_what_is_gone_is_not_said_to_be_safe(lab: Lab, spark: SparkSession) -> None:
    lab.write("in.jsonl", [GOOD, GOOD, BAD])
    told(run(lab, spark))
    lab.write("in.jsonl", [GOOD])
    result = run(lab, spark)
    assert result.error is not None
    assert result.error.code == "file.range_gone"
    assert "nothing is lost" not in told(result).safe
    assert "what the error names is gone" in told(result).safe


def test_a_run_that_another_one_keeps_out_has_none(lab: Lab, spark: SparkSession) -> None:
    lab.write("in.jsonl", [GOOD])
    assert run(lab, spark).error is None
    lease = acquire(open_database(Project.find(lab.root).state_url), "p", 30.0)
    try:
        result = run(lab, spark)
    finally:
        lease.release()
    assert result.error is not None
    assert result.error.code == "lease.held"
    assert result.story is None
