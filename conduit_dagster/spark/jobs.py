"""Spark jobs that another thread can cancel, and errors of Spark in one line."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.spark.gateway import jvm_ended
from conduit_dagster.spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_AGAIN = 0.2


class JobCancelled(TransientError):  # noqa: N818 - the word that the design uses
    """A job ended because somebody cancelled it."""


class _Run:
    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.ended = threading.Event()


_runs: dict[tuple[int, str], _Run] = {}


def run_job(spark: SparkSession, tag: str, action: Callable[[], T]) -> T:
    """Return what ``action`` returns; its Spark jobs carry ``tag`` and end when another thread cancels it.

    Runs ``action`` in the calling thread, since Spark keeps tags per thread. One run per session and tag at
    a time. A cancelled task's Python worker may go on for a while.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with _registered(spark, tag) as run:
        try:
            with _tagged(spark, tag):
                return action()
        except (PySparkException, Py4JError) as error:
            raise _translated(spark, error, tag, run.cancelled.is_set()) from error
        except ConnectionError as error:
            # py4j says so when the JVM is gone; an action's own error is not ours to translate
            if _lost(spark, within=1.0):
                raise _session_lost() from error
            raise


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
        raise FatalError(
            f"a job tagged {tag} is already running", code="spark.tag_in_use", fix="choose another tag"
        )
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
    if _lost(spark):
        return _session_lost()
    text = str(error)
    if cancelled or "[SPARK_JOB_CANCELLED]" in text or "[OPERATION_CANCELED]" in text:
        return JobCancelled(f"the job {tag} was cancelled", code="spark.job_cancelled")
    kind = FatalError if _raised_fatal(text) else TransientError
    return kind(
        explain(error),
        code="spark.job_failed",
        fix="start the pipeline again once the cause is gone; `conduit-dagster doctor` checks Java and Spark",
    )


def _lost(spark: SparkSession, within: float = 0.0) -> bool:
    return not is_connect(spark) and jvm_ended(within)


def _session_lost() -> TransientError:
    return TransientError(
        "the Java process of Spark has ended: it was killed, or ran out of memory",
        code="spark.session_lost",
        fix="start the pipeline again, with more memory (`spark.driver.memory`) if this happens often",
    )


def explain(error: BaseException) -> str:
    """Return the cause of a Spark error in one line: no Java stack trace, no Python traceback."""
    text = str(error)
    raised = _raised_in_worker(text)
    if raised is None:
        return _java_cause(text) or type(error).__name__
    kind, _, message = raised.partition(": ")
    return message if message and _class_named(kind) else raised


_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"[^\W\d][\w.]*(?::|$)")
_JAVA_CLASS = re.compile(r"(?:[a-z][\w$]*\.)+([A-Z][\w$]*): ")
_LOST_TASK = re.compile(r"Lost task [^:]*?\): (.+)")


def _raised_in_worker(text: str) -> str | None:
    """Return ``class: message`` of what a Python worker raised, the line after its last traceback."""
    _, found, tail = text.rpartition(_TRACEBACK)
    lines = tail.splitlines() if found else []
    return next((line.strip() for line in lines if _RAISED.match(line)), None)


def _java_cause(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    # an EOFException without a message says less than what it caused
    told = [cause for cause in causes if _JAVA_CLASS.match(cause)]
    lost = _LOST_TASK.search(text)
    said = [
        line.removeprefix(": ") for line in lines if not line.startswith("An error occurred while calling")
    ]
    return _without_class(told[-1] if told else lost.group(1) if lost else said[0] if said else "")


def _without_class(line: str) -> str:
    """``org.apache.spark.SparkException: gone`` is ``gone``; the name of any other class says something."""
    named = _JAVA_CLASS.match(line)
    rest = line[named.end() :] if named else line
    name = f"{named.group(1)}: " if named and not named.group(1).startswith("Spark") else ""
    return name + re.sub(r"\s*SQLSTATE: \w+.*", "", rest)


def _class_named(name: str) -> type[ConduitError] | None:
    """Return our error class of that name, if this process knows it: only text arrives from a worker."""
    module, _, attribute = name.rpartition(".")
    found = getattr(sys.modules.get(module), attribute, None)
    return found if isinstance(found, type) and issubclass(found, ConduitError) else None


def _raised_fatal(text: str) -> bool:
    kind = _class_named((_raised_in_worker(text) or "").partition(":")[0])
    return kind is not None and kind.fatal
