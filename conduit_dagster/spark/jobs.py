"""Spark jobs that another thread can cancel, with Spark's errors reduced to one line."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from conduit_dagster.daemon_threads import side_by_side
from conduit_dagster.recovery.classify import classified
from conduit_dagster.recovery.errors import NO_MEMORY, NO_MEMORY_FIX, ConduitError, FatalError, TransientError
from conduit_dagster.spark.classic import jvm_ended
from conduit_dagster.spark.connect import has_expired
from conduit_dagster.spark.executors import executors_awaited, no_executors
from conduit_dagster.spark.explain import explain, is_sparks, lacks_our_code, version_differs
from conduit_dagster.spark.session import forget_session, has_stopped, is_connect
from conduit_dagster.spark.shared import server_ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_AGAIN = 0.2
# Spark's reports of a lost server, or a stopped context
_LOST = re.compile(
    r"StatusCode\.UNAVAILABLE|SparkContext (?:was shut down|has been shutdown)|methods on a stopped SparkContext"
)


class JobCancelled(TransientError):  # noqa: N818 - the word that the design uses
    """Raised when a job ended because it was cancelled."""


class _Run:
    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.starved = threading.Event()
        self.ended = threading.Event()


_runs: dict[tuple[int, str], _Run] = {}


def run_job(spark: SparkSession, tag: str, action: Callable[[], T], owner: str = "") -> T:
    """Return the result of ``action``; its Spark jobs carry ``tag`` and end when another thread cancels that tag.

    ``owner``: a second tag for these jobs, which other runs may share.

    Runs ``action`` in the calling thread, since Spark keeps tags per thread. Only one run per session and tag at a
    time. A cancelled task's Python worker may keep running for a while.
    """
    with _registered(spark, tag) as run:
        try:
            with _tagged(spark, tag), _tagged(spark, owner) if owner else nullcontext():
                return action()
        except ConnectionError as error:
            # py4j raises this when the JVM is gone; an error of the action itself is not ours to translate
            if _lost(spark, within=1.0):
                raise _session_lost() from error
            raise
        except Exception as error:
            if not is_sparks(error):
                raise
            raise _translated(spark, error, tag, run) from error


@contextmanager
def cancellable(spark: SparkSession, tag: str) -> Generator[threading.Event]:
    """Run the block like :func:`run_job`, but leave Spark's errors unchanged.

    Yields an event that is set when another thread cancels the block. Spark's error after a cancellation becomes
    ``JobCancelled``; nothing is raised if the block finished anyway.
    """
    with _registered(spark, tag) as run:
        try:
            with _tagged(spark, tag):
                yield run.cancelled
        except Exception as error:
            if not is_sparks(error):
                raise
            if run.cancelled.is_set():
                raise _cancelled(tag) from error
            if run.starved.is_set():
                raise no_executors(spark) from error
            raise


def cancel_job(spark: SparkSession, tag: str, timeout: float = 10.0) -> bool:
    """Cancel the run with this tag and wait for its end; return whether it has ended.

    If this process has no run with that tag, cancel it in Spark once, without waiting.
    """
    run = _runs.get((id(spark), tag))
    if run is None:
        _interrupt(spark, tag)
        return True
    run.cancelled.set()
    return _interrupt_until_ended(spark, tag, run, timeout)


def _interrupt_until_ended(spark: SparkSession, tag: str, run: _Run, timeout: float) -> bool:
    """Cancel repeatedly: Spark cancels only jobs that have started, and the run may be between two of its jobs."""
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

    def give_up() -> None:
        run.starved.set()
        _interrupt(spark, tag)

    try:
        with executors_awaited(spark, give_up):
            yield run
    finally:
        del _runs[id(spark), tag]
        run.ended.set()


@contextmanager
def _tagged(spark: SparkSession, tag: str) -> Generator[None]:
    if has_stopped(spark):
        raise _session_lost()
    add, remove = (
        (spark.addTag, spark.removeTag)
        if is_connect(spark)
        else (spark.sparkContext.addJobTag, spark.sparkContext.removeJobTag)
    )
    add(tag)
    try:
        yield
    finally:
        if not has_stopped(spark):
            remove(tag)


def _translated(spark: SparkSession, error: Exception, tag: str, run: _Run) -> ConduitError:
    if run.starved.is_set() and not run.cancelled.is_set():
        return no_executors(spark)
    if (lost := lost_session(spark, error)) is not None:
        return lost
    text = str(error)
    if run.cancelled.is_set() or "[SPARK_JOB_CANCELLED]" in text or "[OPERATION_CANCELED]" in text:
        return _cancelled(tag)
    # an error that a task raised has its own code and fix
    return classified(error) or _failed(explain(error))


def _failed(cause: str) -> ConduitError:
    # a task reports its own errors: these kept it from starting
    if lacks_our_code(cause):
        return version_differs(f"another conduit-dagster ({cause})", "one that needs it")
    if any(sign in cause for sign in _NO_MEMORY):
        return TransientError(f"{NO_MEMORY} for a worker of Spark: {cause}", code="spark.job_failed", fix=NO_MEMORY_FIX)
    if any(sign in cause for sign in _UNFIT_PYTHON):
        return TransientError(
            f"the Python of Spark's workers can't run the pipeline: {cause}",
            code="spark.job_failed",
            fix="install conduit-dagster and its dependencies there, for the same Python as here, or name another one "
            "in spark.conf: `spark.pyspark.python`",
        )
    if "Python worker exited unexpectedly" in cause:
        return TransientError(
            "a Python worker of Spark was killed or crashed in the middle of a task",
            code="spark.job_failed",
            fix=_WORKER_ENDED,
        )
    fix = "start the pipeline again once the cause is gone; `conduit-dagster doctor` checks Java and Spark"
    return TransientError(cause, code="spark.job_failed", fix=_EXECUTOR_LOST if " was lost: " in cause else fix)


_NO_MEMORY = ("MemoryError", "failed to map segment", "Cannot allocate memory")
"""Signs of a lack of memory in the error of a Python worker, the second one of a library that it loads."""
_UNFIT_PYTHON = ("ModuleNotFoundError", "PYTHON_VERSION_MISMATCH", "Cannot run program")
_WORKER_ENDED = (
    "look for what ended it: the system, for lack of memory (its log says so: dmesg), then free or add some; "
    "`spark.executor.pyspark.memory` in spark.conf, with which libraries crash where a task has less than 400m, then "
    "raise or unset it; or a library of a plugin; then start it again"
)
_EXECUTOR_LOST = (
    "see the executor's log in the cluster's UI; if it was out of memory or killed, set `spark.executor.memory` or "
    "`spark.executor.memoryOverhead` higher in spark.conf, or give it fewer tasks (`spark.executor.cores`)"
)


def lost_session(spark: SparkSession, error: Exception) -> TransientError | None:
    """Return the error for a lost session if that is what Spark's error means.

    A session that has expired is dropped: the next attempt opens another.
    """
    if has_expired(error):
        forget_session(spark)
        return session_expired()
    text = str(error)
    # only in an error of the call itself: a task may report the same of one of its own connections
    cut = type(error).__module__.startswith("grpc.") and "Stream removed" in text
    return _session_lost() if cut or _lost(spark) or _LOST.search(text) else None


def _cancelled(tag: str) -> JobCancelled:
    return JobCancelled(f"the job {tag} was cancelled", code="spark.job_cancelled")


def _lost(spark: SparkSession, within: float = 0.0) -> bool:
    return server_ended(spark) if is_connect(spark) else jvm_ended(within)


def _session_lost() -> TransientError:
    return TransientError(
        "the Spark session has ended: its Java process or server was killed or out of memory, or its cluster ended it",
        code="spark.session_lost",
        fix="start the pipeline again, with more memory (`spark.driver.memory`) if this happens often",
    )


def session_expired() -> TransientError:
    """Return the error for a session that its server has ended."""
    return TransientError(
        "the Spark server has ended the session: it was not used for too long, or the server was restarted",
        code="spark.session_lost",
        fix="start the pipeline again; the server's option spark.connect.session.manager.defaultSessionTimeout says "
        "how long an unused session stays",
    )


_lock = threading.Lock()
_running: dict[str, dict[str, SparkSession]] = {}
"""Per pipeline: the tags of its running jobs, each with its session."""


def new_tag() -> str:
    """Return a tag for jobs that no other ones have."""
    return f"conduit-{secrets.token_hex(6)}"


@contextmanager
def tag_of(pipeline: str, spark: SparkSession) -> Generator[str]:
    """Yield a new tag; jobs that run under it belong to the pipeline until the block ends."""
    tag = new_tag()
    with _lock:
        _running.setdefault(pipeline, {})[tag] = spark
    try:
        yield tag
    finally:
        with _lock:
            _running[pipeline].pop(tag)


@contextmanager
def jobs_of(pipeline: str, spark: SparkSession) -> Generator[threading.Event]:
    """Run the block such that its jobs are cancelled with the pipeline; raise ``JobCancelled`` if that ended it.

    Yields an event that is set on cancellation, for code that waits for more than Spark's jobs.
    """
    with tag_of(pipeline, spark) as tag, cancellable(spark, tag) as cancelled:
        yield cancelled


def cancel_jobs_of(pipeline: str) -> None:
    """Cancel all jobs of the pipeline in this process in parallel, and wait for them as long as ``cancel_job`` does.

    A job that is about to begin may be missed: call it again. Raises the first job's error, once all were cancelled.
    """
    with _lock:
        running = dict(_running.get(pipeline, {}))
    # one thread each: none may wait for the end of another, nor the process for one that hangs
    side_by_side([partial(cancel_job, spark, tag) for tag, spark in running.items()], "cancel")
