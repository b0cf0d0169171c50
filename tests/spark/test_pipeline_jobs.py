"""A pipeline's jobs are ended in parallel."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from lab.waiting import wait_until
from pyspark.sql import SparkSession

from conduit_dagster.spark.jobs import _running, cancel_jobs_of, jobs_of


def test_one_that_does_not_end_keeps_no_other_waiting(spark: SparkSession) -> None:
    go_on = threading.Event()

    def stubborn() -> None:
        with jobs_of("p", spark):
            go_on.wait(120)

    def obedient() -> bool:
        with jobs_of("p", spark) as cancelled:
            return cancelled.wait(120)

    with ThreadPoolExecutor(3) as pool:
        try:
            first = pool.submit(stubborn)
            wait_until(lambda: len(_running.get("p", {})) == 1, "the first is there")
            second = pool.submit(obedient)
            wait_until(lambda: len(_running["p"]) == 2, "both are there")
            asked = pool.submit(cancel_jobs_of, "p")
            assert second.result(60)
            assert not first.done() and not asked.done()
        finally:
            go_on.set()
    assert _running["p"] == {}
