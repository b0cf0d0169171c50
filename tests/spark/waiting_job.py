"""Two jobs of one client of a Spark Connect server, of which the first has all slots: ``waiting_job.py URL FOLDER``."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from lab.waiting import wait_until
from structlog.testing import capture_logs

from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.spark import executors
from conduit_dagster.spark.session import SparkSettings, open_session

TASKS = 8
"""More than the server has slots."""


def hold(folder: str, number: int) -> bytes:
    """The task of the first job: it ends once the file ``go`` exists."""
    Path(folder, f"held-{number}").touch()
    while Path(folder).exists() and not Path(folder, "go").exists():
        time.sleep(0.02)
    return b"%d" % number


def main(url: str, folder: str) -> None:
    """Print what was logged first, and how many rows the jobs had in the end."""
    executors._SERVER_INTERVAL = 0.2  # pyright: ignore[reportPrivateUsage]
    jobs = Jobs(open_session(SparkSettings(url=url), "waiting"), "p")
    with ThreadPoolExecutor() as threads, capture_logs() as logged:
        first = threads.submit(jobs.each, TASKS, partial(hold, folder))
        try:
            wait_until(lambda: list(Path(folder).glob("held-*")), "the first job has the slots")
            second = threads.submit(jobs.each, 1, partial(hold, folder))
            wait_until(lambda: logged, "the second job's wait is told")
        finally:
            Path(folder, "go").touch()
        rows = len(first.result()), len(second.result())
    print(json.dumps([logged[0]["event"], rows]))


if __name__ == "__main__":
    main(*sys.argv[1:])
