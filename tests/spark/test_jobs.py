"""Jobs cancelled by another thread, and what is kept of Spark's errors."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc._channel import _InactiveRpcError, _RPCState
from lab.waiting import wait_until

from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.spark.explain import explain
from conduit_dagster.spark.jobs import JobCancelled, _runs, cancel_job, run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Task = Callable[[Iterator[Any]], Iterator[Any]]


def _failing(error: Exception) -> Task:
    def task(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            try:
                raise KeyError("the cause of it")
            except KeyError as cause:
                raise error from cause
        yield from ()

    return task


def _run(spark: SparkSession, task: Task) -> list[Any]:
    return run_job(spark, "job", lambda: spark.range(2).mapInArrow(task, "id long").collect())


def _failure(spark: SparkSession, task: Task) -> ConduitError:
    with pytest.raises(ConduitError) as caught:
        _run(spark, task)
    return caught.value


def test_a_job_returns_what_its_action_returns(spark: SparkSession) -> None:
    rows = _run(spark, lambda batches: batches)
    assert sorted(row.id for row in rows) == [0, 1]
    assert not spark.sparkContext.getJobTags()


def test_an_error_of_a_worker_becomes_its_class_and_message(spark: SparkSession) -> None:
    error = _failure(spark, _failing(ValueError("no such thing\nsecond line")))
    assert type(error) is TransientError
    assert (error.code, error.message) == ("spark.job_failed", "ValueError: no such thing")
    assert error.fix
    assert "PythonException" in type(error.__cause__).__name__


def test_a_fatal_error_of_a_worker_stays_fatal(spark: SparkSession) -> None:
    error = _failure(spark, _failing(FatalError("the key is wrong")))
    assert type(error) is FatalError
    assert error.message == "the key is wrong"


def _cut_off(details: str) -> grpc.RpcError:
    return _InactiveRpcError(_RPCState((), (), (), grpc.StatusCode.UNKNOWN, details))  # pyright: ignore[reportAbstractUsage]


def test_a_server_that_was_killed_in_the_middle_of_an_answer_is_a_lost_session(spark: SparkSession) -> None:
    """Spark Connect passes this one on unchanged; observed while the dying process still existed."""

    def action() -> None:
        raise _cut_off("Stream removed (recvmsg:Connection reset by peer (104))")

    with pytest.raises(TransientError) as caught:
        run_job(spark, "job", action)
    assert caught.value.code == "spark.session_lost"


def test_a_task_whose_own_connection_is_cut_is_no_lost_session(spark: SparkSession) -> None:
    error = _failure(spark, _failing(OSError("Stream removed (recvmsg:Connection reset by peer (104))")))
    assert error.code == "spark.job_failed"


def test_a_worker_that_dies_is_said_so(spark: SparkSession) -> None:
    def die(batches: Iterator[Any]) -> Iterator[Any]:
        os._exit(9)
        yield from batches

    error = _failure(spark, die)
    assert type(error) is TransientError
    assert (error.code, error.message) == (
        "spark.job_failed",
        "a Python worker of Spark was killed or crashed in the middle of a task",
    )
    assert "spark.executor.pyspark.memory" in (error.fix or "")


@pytest.mark.parametrize("error", [MemoryError("malloc"), ImportError("libarrow.so: failed to map segment from it")])
def test_a_worker_without_memory_is_said_so(spark: SparkSession, error: Exception) -> None:
    found = _failure(spark, _failing(error))
    assert found.message == f"no memory is left for a worker of Spark: {type(error).__name__}: {error}"
    assert "spark.executor.pyspark.memory" in (found.fix or "") and type(found) is TransientError


def test_a_worker_that_dies_is_said_so_however_its_socket_ended() -> None:
    """It is reset if the worker left data unread, which is a matter of chance."""
    said = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    for cause in ("java.io.EOFException", "java.net.SocketException: Connection reset"):
        assert explain(RuntimeError(f"{said}\n\tat x\nCaused by: {cause}\n\tat y")) == said.partition(": ")[2]


def test_an_error_of_spark_itself_is_one_line(spark: SparkSession) -> None:
    with pytest.raises(TransientError) as caught:
        run_job(spark, "read", lambda: spark.read.json("/nowhere/at/all").collect())
    assert caught.value.message == "[PATH_NOT_FOUND] Path does not exist: file:/nowhere/at/all."


def test_an_error_that_is_not_sparks_passes_unchanged(spark: SparkSession) -> None:
    def action() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run_job(spark, "own", action)


_NAP, _SOON = 120, 60
"""Seconds that a task sleeps, and in which it is cancelled on a busy machine too."""


class _Thread(threading.Thread):
    """Run a job whose task reports its start and then sleeps."""

    def __init__(self, spark: SparkSession, tag: str, mark: Path) -> None:
        super().__init__()
        self.spark, self.tag, self.mark = spark, tag, mark
        self.outcome: object = None

    def run(self) -> None:
        try:
            self.outcome = run_job(self.spark, self.tag, self._action)
        except ConduitError as error:
            self.outcome = error

    def _action(self) -> int:
        return self.spark.range(2).mapInArrow(_sleeping(str(self.mark)), "id long").count()


def _sleeping(mark: str) -> Task:
    def task(batches: Iterator[Any]) -> Iterator[Any]:
        Path(mark).touch()
        time.sleep(_NAP)
        yield from batches

    return task


def test_a_long_job_is_cancelled_from_another_thread(spark: SparkSession, tmp_path: Path) -> None:
    thread = _Thread(spark, "long", tmp_path / "started")
    thread.start()
    wait_until((tmp_path / "started").exists, "the task has started", over=lambda: not thread.is_alive())
    assert cancel_job(spark, "long")
    thread.join(_SOON)
    assert isinstance(thread.outcome, JobCancelled)
    assert thread.outcome.code == "spark.job_cancelled"


@pytest.mark.slow
def test_only_the_job_with_the_tag_is_cancelled(spark: SparkSession, tmp_path: Path) -> None:
    thread = _Thread(spark, "one", tmp_path / "started")
    thread.start()
    wait_until((tmp_path / "started").exists, "the task has started", over=lambda: not thread.is_alive())
    cancel_job(spark, "other")
    assert thread.is_alive()
    assert cancel_job(spark, "one")
    thread.join(_SOON)
    assert isinstance(thread.outcome, JobCancelled)


def test_a_run_between_two_of_its_jobs_is_cancelled_too(spark: SparkSession, tmp_path: Path) -> None:
    """Spark itself forgets a cancel that arrives while no job with the tag runs."""
    between = threading.Event()
    cancelled: list[bool] = []

    def action() -> int:
        between.set()
        assert _runs[id(spark), "gap"].cancelled.wait(_SOON)
        return spark.range(2).mapInArrow(_sleeping(str(tmp_path / "x")), "id long").count()

    def cancel() -> None:
        assert between.wait(_SOON)
        cancelled.append(cancel_job(spark, "gap"))

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(JobCancelled):
        run_job(spark, "gap", action)
    canceller.join(_SOON)
    assert cancelled == [True]


def test_two_runs_of_one_tag_are_refused(spark: SparkSession) -> None:
    with pytest.raises(FatalError, match="already running"):
        run_job(spark, "twice", lambda: run_job(spark, "twice", lambda: 1))


_PY4J = """An error occurred while calling o121.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 2.0 failed 1 times, \
most recent failure: Lost task 0.0 in stage 2.0 (TID 4) (localhost executor driver): {lost}
\tat org.apache.spark.api.Some.where(Some.scala:1136)

Driver stacktrace:
\tat org.apache.spark.Other.where(Other.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (
            _PY4J.format(lost="java.lang.OutOfMemoryError: Java heap space"),
            "OutOfMemoryError: Java heap space",
        ),
        (
            _PY4J.format(lost="org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030")
            + "Caused by: java.io.IOException: No space left on device\n\tat java.base/x\n",
            "IOException: No space left on device",
        ),
        (
            _PY4J.format(lost="org.apache.spark.SparkException: gone") + "Caused by: java.io.EOFException\n",
            "gone",
        ),
        (
            _PY4J.format(
                lost='java.io.IOException: Cannot run program "/no/python": error=2, No such file or directory'
            )
            + "Caused by: java.io.IOException: error=2, No such file or directory\n\tat java.base/x\n",
            'Cannot run program "/no/python": error=2, No such file or directory',
        ),
        (
            _PY4J.format(
                lost="ExecutorLostFailure (executor 4 exited caused by one of the running tasks) "
                "Reason: Command exited with code 137"
            )
            + "Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 5\n\tat x\n",
            "executor 4 was lost: Command exited with code 137",
        ),
        (
            "\n[PARSE_SYNTAX_ERROR] Syntax error at 'x'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==",
            "[PARSE_SYNTAX_ERROR] Syntax error at 'x'.",
        ),
        ("", "RuntimeError"),
    ],
)
def test_java_text_is_reduced_to_its_cause(text: str, short: str) -> None:
    assert explain(RuntimeError(text)) == short
