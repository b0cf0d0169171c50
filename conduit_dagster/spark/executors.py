"""Executors of a cluster, and jobs that wait for them: Spark itself would wait for ever, and only log it."""

# pyright: reportPrivateUsage=none

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import structlog

from conduit_dagster.daemon_threads import in_daemon
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.spark.session import close_session, has_stopped, is_connect
from conduit_dagster.spark.shared import current_shared
from conduit_dagster.spark.sql.sql_session import origin_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger("conduit.spark")

_INTERVAL = "spark.starvation.timeout"
"""Spark's own setting for how often it logs that a job waits for executors."""
_WARNING, _LAST = 4, 20
"""Numbers of such intervals: between two warnings, and until the job is given up."""
_FIX = (
    "see in the cluster's UI whether a worker is free (an application takes every core unless its spark.conf has "
    "`spark.cores.max`) and large enough (`spark.executor.memory`); executors that end at once leave a log there"
)


def on_cluster(spark: SparkSession) -> bool:
    """Return whether the driver is in this process, and its executors are not."""
    return not is_connect(spark) and not str(spark.sparkContext.master).startswith("local")


@contextmanager
def executors_awaited(spark: SparkSession, give_up: Callable[[], object]) -> Generator[None]:
    """Run the block, which runs jobs; warn while a cluster has no executor for them, finally call ``give_up``.

    ``give_up`` is called repeatedly, from another thread, until the block ends. For a Connect server that is not the
    project's own, whose executors a client does not see, only warn: other jobs may have them all.
    """
    if is_connect(spark) and origin_of(spark) is not current_shared():
        with _server_watched(spark):
            yield
        return
    if not on_cluster(spark):
        yield
        return
    ended = threading.Event()
    in_daemon(lambda: _watch(spark, give_up, ended), "executors")
    try:
        yield
    finally:
        ended.set()


def no_executors(spark: SparkSession) -> TransientError:
    """Return the error for a job that was given up, and end its application.

    The next attempt opens another one: a master that was restarted does not know this one any more.
    """
    error = TransientError(
        f"{spark.sparkContext.master} gave no executor for {_LAST * _interval(spark):g} s: the job is given up",
        code="spark.no_executors",
        fix=_FIX,
    )
    # another pipeline of this process may have done so
    if not has_stopped(spark):
        close_session(spark)
    return error


def _watch(spark: SparkSession, give_up: Callable[[], object], ended: threading.Event) -> None:
    interval, waited = _interval(spark), 0
    while not ended.wait(interval):
        waited = waited + 1 if _is_starved(spark) else 0
        if waited >= _LAST:
            give_up()
        elif waited % _WARNING == 1:
            log.warning("the job waits: the cluster gives no executor", cluster=spark.sparkContext.master, fix=_FIX)


_intervals: WeakKeyDictionary[SparkSession, float] = WeakKeyDictionary()


def _interval(spark: SparkSession) -> float:
    if spark not in _intervals:
        context: Any = spark.sparkContext
        _intervals[spark] = context._jsc.sc().conf().getTimeAsMs(_INTERVAL, "15s") / 1000
    return _intervals[spark]


def _is_starved(spark: SparkSession) -> bool:
    tracker = spark.sparkContext.statusTracker()
    # the driver counts as one
    return bool(tracker.getActiveJobsIds()) and len(tracker.getExecutorInfos()) <= 1


_SERVER_INTERVAL = 15.0
"""Seconds without a task at work, of a job that has tasks left, before a warning: Spark's own default."""
_SERVER_FIX = (
    "see in the server's UI whether its cluster gives it executors (a free worker that is large enough for "
    "`spark.executor.memory`), or whether other jobs have them all"
)


class TaskReports:
    """A server's reports of the operations that a thread waits for: since when none of the tasks left is at work."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def report(self, stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str, done: bool) -> None:
        """Take a report; PySpark calls it in the thread that waits."""
        del operation_id
        left = any(stage.num_tasks > stage.num_completed_tasks for stage in stages or ())
        if left and not inflight_tasks and not done:
            self._since.setdefault(threading.get_ident(), time.monotonic())
        else:
            self.forget(threading.get_ident())

    def idle_seconds(self, thread: int) -> float:
        """Return for how long no task of the thread's operation has been at work."""
        since = self._since.get(thread)
        return 0.0 if since is None else time.monotonic() - since

    def forget(self, thread: int) -> None:
        """Forget the thread's operation: it has ended, or a task of it is at work."""
        self._since.pop(thread, None)


_reports: WeakKeyDictionary[SparkSession, TaskReports] = WeakKeyDictionary()


@contextmanager
def _server_watched(spark: SparkSession) -> Generator[None]:
    reports, thread, ended = _reports_of(spark), threading.get_ident(), threading.Event()
    reports.forget(thread)
    in_daemon(lambda: _watch_server(reports, thread, ended), "executors")
    try:
        yield
    finally:
        ended.set()
        reports.forget(thread)


def _reports_of(spark: SparkSession) -> TaskReports:
    if spark not in _reports:
        _reports[spark] = TaskReports()
        spark.registerProgressHandler(_reports[spark].report)  # type: ignore[arg-type]  # pyright: ignore
    return _reports[spark]


def _watch_server(reports: TaskReports, thread: int, ended: threading.Event) -> None:
    waited = 0
    while not ended.wait(_SERVER_INTERVAL):
        waited = waited + 1 if reports.idle_seconds(thread) >= _SERVER_INTERVAL else 0
        if waited % _WARNING == 1:
            log.warning("the job waits: the Spark server runs none of its tasks", fix=_SERVER_FIX)
