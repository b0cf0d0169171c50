"""The Spark jobs of one run: several may run in parallel, and a forced stop ends all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from conduit_dagster.engine.spark_tasks import PACKAGE_VERSION, ROW_SCHEMA, Task, run_tasks
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.spark.connect import owner_tag, whereabouts
from conduit_dagster.spark.executors import on_cluster
from conduit_dagster.spark.jobs import JobCancelled, cancel_jobs_of, run_job, tag_of
from conduit_dagster.spark.session import parallelism
from conduit_dagster.spark.sql.frame import with_queries
from conduit_dagster.spark.sql.query import SqlQuery
from conduit_dagster.spark.sql.sql_session import sql_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


class Jobs:
    """Runner of a pipeline's jobs on one session, each under its own tag."""

    def __init__(self, spark: SparkSession | Callable[[], SparkSession], pipeline: str, epoch: int = 0) -> None:
        """``spark`` may be a function that opens the session, called with the first job: most operations need none."""
        self._opener = spark if callable(spark) else lambda: spark
        self.pipeline = pipeline
        self._owner = owner_tag(pipeline, epoch)
        self._cancelled_ns = 0
        self._slots = 0

    @lazy_property
    def spark(self) -> SparkSession:
        """The session."""
        return self._opener()

    def each(self, count: int, task: Task, queries: Mapping[str, SqlQuery] | None = None) -> list[bytes]:
        """Run one task for each number from 0 to ``count`` - 1; return their results, in no particular order.

        ``queries``: SQL that the task may run in Spark, by node. Raises like
        :func:`~conduit_dagster.spark.jobs.run_job` and :meth:`run`; ``FatalError``: ``sql.query`` for a query that
        Spark rejects, ``spark.version_differs``; ``TransientError`` (``spark.ledger_lost``) if a result is missing.
        """
        from pyspark import cloudpickle

        # within the function, whose version is checked before the task is loaded
        function = partial(run_tasks, PACKAGE_VERSION, cloudpickle.dumps(task))

        def action() -> list[bytes]:
            # the frame is built here too: that contacts a Connect server, which may end meanwhile
            if queries:
                frame = with_queries(session, count, function, ROW_SCHEMA, queries)
            else:
                frame = session.range(0, count, 1, count).mapInArrow(function, ROW_SCHEMA)
            return frame.toArrow().column(0).to_pylist()

        session = self.run(lambda: sql_session(self.spark)) if queries else self.spark
        rows = self.run(action, session)
        if len(rows) != count:
            raise TransientError(f"{count - len(rows)} of {count} tasks did not report", code="spark.ledger_lost")
        return rows

    @lazy_property
    def _is_on_cluster(self) -> bool:
        return on_cluster(self.spark)

    def slots(self) -> int:
        """Return how many tasks run at once; on a cluster, executors come and go. Raises the same as :meth:`each`."""
        if self._is_on_cluster or not self._slots:
            self._slots = self.run(lambda: parallelism(self.spark))
        return self._slots

    def run(self, action: Callable[[], T], session: SparkSession | None = None) -> T:
        """Return the result of ``action``. ``session``: where its jobs run, if not in this object's session.

        Raises ``JobCancelled`` if :meth:`cancel` was called, before or meanwhile.
        """
        spark = session or self.spark
        with tag_of(self.pipeline, spark) as tag:
            # checked once the tag is known: a concurrent cancel either sees the tag or is seen here
            if self.is_cancelled:
                raise JobCancelled("the run was stopped by force", code="spark.job_cancelled")
            return run_job(spark, tag, action, self._owner)

    @property
    def is_cancelled(self) -> bool:
        """Whether :meth:`cancel` was called."""
        return self._cancelled_ns > 0

    def whereabouts(self) -> dict[str, str]:
        """Return where these jobs run, so that the next owner can end them if they outlive this process.

        And when they were cancelled, if they were: their tasks end a moment later.
        """
        return whereabouts(self.spark, self._owner, self._cancelled_ns)

    def cancel(self) -> None:
        """Cancel all of the pipeline's jobs in this process, including its connectors'; its own start no more.

        Call it repeatedly until the run has ended: a connector may start another job. Raises Spark's error for a lost
        session.
        """
        self._cancelled_ns = time.time_ns()
        cancel_jobs_of(self.pipeline)
