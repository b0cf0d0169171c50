"""Spark jobs that another thread can cancel, and errors of Spark in one line."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from conduit_dagster.recovery.classify import classified
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.spark.explain import explain, is_sparks
from conduit_dagster.spark.gateway import jvm_ended
from conduit_dagster.spark.session import is_connect
from conduit_dagster.spark.shared import server_ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_AGAIN = 0.2
# how it is said that a server, its memory of the session, or a context that is being stopped is gone
_LOST = re.compile(
    r"StatusCode\.UNAVAILABLE|\[INVALID_HANDLE\.SESSION_\w+\]"
    r"|SparkContext (?:was shut down|has been shutdown)|methods on a stopped SparkContext"
)


class JobCancelled(TransientError):  # noqa: N818 - the word that the design uses
    """A job ended because somebody cancelled it."""


class _Run:
    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.ended = threading.Event()


_runs: dict[tuple[int, str], _Run] = {}


def run_job(spark: SparkSession, tag: str, action: Callable[[], T], owner: str = "") -> T:
    """Return what ``action`` returns; its Spark jobs carry ``tag`` and end when another thread cancels it.

    ``owner``: a tag that they carry as well, which other runs may have too.

    Runs ``action`` in the calling thread, since Spark keeps tags per thread. One run per session and tag at
    a time. A cancelled task's Python worker may go on for a while.
    """
    with _registered(spark, tag) as run:
        try:
            with _tagged(spark, tag), _tagged(spark, owner) if owner else nullcontext():
                return action()
        except ConnectionError as error:
            # py4j says so when the JVM is gone; an action's own error is not ours to translate
            if _lost(spark, within=1.0):
                raise _session_lost() from error
            raise
        except Exception as error:
            if not is_sparks(error):
                raise
            raise _translated(spark, error, tag, run.cancelled.is_set()) from error


@contextmanager
def cancellable(spark: SparkSession, tag: str) -> Generator[threading.Event]:
    """As :func:`run_job` for what is inside, but that errors of Spark are left as they are.

    Gives the event that is set when another thread cancels it. Raises ``JobCancelled`` for what Spark raises then;
    nothing where it came to its end all the same.
    """
    with _registered(spark, tag) as run:
        try:
            with _tagged(spark, tag):
                yield run.cancelled
        except Exception as error:
            if not (run.cancelled.is_set() and is_sparks(error)):
                raise
            raise _cancelled(tag) from error


def cancel_job(spark: SparkSession, tag: str, timeout: float = 10.0) -> bool:
    """Cancel the run with this tag and wait for its end; return whether it has ended.

    Without a run of that tag in this process, Spark is asked once.
    """
    run = _runs.get((id(spark), tag))
    if run is None:
        _interrupt(spark, tag)
        return True
    run.cancelled.set()
    return _interrupt_until_ended(spark, tag, run, timeout)


def _interrupt_until_ended(spark: SparkSession, tag: str, run: _Run, timeout: float) -> bool:
    """Spark cancels only jobs that have started, so a run caught between two of its jobs is asked again."""
    for _ in range(max(1, round(timeout / _AGAIN))):
        if run.ended.is_set():
            break
        _interrupt(spark, tag)
        run.ended.wait(_AGAIN)
    return run.ended.is_set()


def _interrupt(spark: SparkSession, tag: str) -> None:
    # a classic session's interruptTag returns an empty list and cancels nothing
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


@contextmanager
def _registered(spark: SparkSession, tag: str) -> Generator[_Run]:
    run = _Run()
    if _runs.setdefault((id(spark), tag), run) is not run:
        raise FatalError(f"a job tagged {tag} is already running", code="spark.tag_in_use", fix="choose another tag")
    try:
        yield run
    finally:
        del _runs[id(spark), tag]
        run.ended.set()


@contextmanager
def _tagged(spark: SparkSession, tag: str) -> Generator[None]:
    add, remove = (
        (spark.addTag, spark.removeTag)
        if is_connect(spark)
        else (spark.sparkContext.addJobTag, spark.sparkContext.removeJobTag)
    )
    add(tag)
    try:
        yield
    finally:
        remove(tag)


def _translated(spark: SparkSession, error: Exception, tag: str, cancelled: bool) -> ConduitError:
    text = str(error)
    # of a call's own error: a task may say as much of a connection of its own
    cut = type(error).__module__.startswith("grpc.") and "Stream removed" in text
    if cut or _lost(spark) or _LOST.search(text):
        return _session_lost()
    if cancelled or "[SPARK_JOB_CANCELLED]" in text or "[OPERATION_CANCELED]" in text:
        return _cancelled(tag)
    # what a task raised has a code and a fix of its own
    return classified(error) or TransientError(
        explain(error),
        code="spark.job_failed",
        fix="start the pipeline again once the cause is gone; `conduit-dagster doctor` checks Java and Spark",
    )


def _cancelled(tag: str) -> JobCancelled:
    return JobCancelled(f"the job {tag} was cancelled", code="spark.job_cancelled")


def _lost(spark: SparkSession, within: float = 0.0) -> bool:
    return server_ended(spark) if is_connect(spark) else jvm_ended(within)


def _session_lost() -> TransientError:
    return TransientError(
        "the Java process or the server of Spark has ended: it was killed, or ran out of memory",
        code="spark.session_lost",
        fix="start the pipeline again, with more memory (`spark.driver.memory`) if this happens often",
    )
