"""Which of this process's Spark jobs are whose: a forced stop of a pipeline ends its engine's and its connectors'."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from conduit_dagster.spark.jobs import cancel_job, cancellable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_lock = threading.Lock()
_running: dict[str, dict[str, SparkSession]] = {}
"""By pipeline, the tags of what runs, and where."""


@contextmanager
def tag_of(pipeline: str, spark: SparkSession) -> Generator[str]:
    """A new tag: what runs under it meanwhile is the pipeline's."""
    tag = f"conduit-{secrets.token_hex(6)}"
    with _lock:
        _running.setdefault(pipeline, {})[tag] = spark
    try:
        yield tag
    finally:
        with _lock:
            _running[pipeline].pop(tag)


@contextmanager
def jobs_of(pipeline: str, spark: SparkSession) -> Generator[threading.Event]:
    """What runs inside is cancelled with the pipeline; gives the event that is set then, for who waits for more than
    Spark's jobs. Raises ``JobCancelled`` where that ended it.
    """
    with tag_of(pipeline, spark) as tag, cancellable(spark, tag) as cancelled:
        yield cancelled


def cancel_jobs_of(pipeline: str) -> None:
    """Ends all that run in this process, side by side, and waits for that as long as ``cancel_job`` does.

    What is about to begin may be missed: ask again. Raises what the first of them raised, once all have been asked.
    """
    with _lock:
        running = dict(_running.get(pipeline, {}))
    # one each: none may wait for another's end
    with ThreadPoolExecutor(max(1, len(running))) as pool:
        asked = [pool.submit(cancel_job, spark, tag) for tag, spark in running.items()]
    for one in asked:
        one.result()
