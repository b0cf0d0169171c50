"""The Spark jobs of one run: several may run side by side, and all of them end on a forced stop."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from conduit_dagster.spark.jobs import JobCancelled, cancel_job, run_job
from conduit_dagster.spark.session import parallelism

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    # of Arrow's record batches
    Task = Callable[[Iterator[Any]], Iterator[Any]]

T = TypeVar("T")


class Jobs:
    """Runs jobs on one session, each under a tag of its own."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._tags: set[str] = set()
        self._lock = threading.Lock()
        self._cancelled = False

    def each(self, count: int, function: Task, schema: str) -> list[bytes]:
        """What one task each for the numbers from 0 to ``count`` - 1 gives, in no order: the first column.

        Raises what :func:`~conduit_dagster.spark.jobs.run_job` does, and as :meth:`run`.
        """

        def action() -> list[bytes]:
            # all in here: a Connect server, which may end meanwhile, is asked while the frame is made too
            frame = self.spark.range(0, count, 1, count).mapInArrow(function, schema)
            return frame.toArrow().column(0).to_pylist()

        return self.run(action)

    def slots(self) -> int:
        """How many tasks run at once. Raises as :meth:`each`."""
        return self.run(lambda: parallelism(self.spark))

    def run(self, action: Callable[[], T]) -> T:
        """What ``action`` returns. Raises ``JobCancelled`` once :meth:`cancel` was called, before or meanwhile."""
        tag = f"conduit-{secrets.token_hex(6)}"
        with self._lock:
            if self._cancelled:
                raise JobCancelled("the run was stopped by force", code="spark.job_cancelled")
            self._tags.add(tag)
        try:
            return run_job(self.spark, tag, action)
        finally:
            with self._lock:
                self._tags.discard(tag)

    def cancel(self) -> None:
        """Ends all that run, and lets no other begin."""
        with self._lock:
            self._cancelled = True
            tags = list(self._tags)
        for tag in tags:
            cancel_job(self.spark, tag)
