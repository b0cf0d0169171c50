"""The Spark jobs of one run: several may run side by side, and all of them end on a forced stop."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from conduit_dagster.spark.jobs import JobCancelled, cancel_job, run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


class Jobs:
    """Runs jobs on one session, each under a tag of its own."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._tags: set[str] = set()
        self._lock = threading.Lock()
        self._cancelled = False

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
