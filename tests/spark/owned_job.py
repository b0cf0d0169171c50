"""A client of a Spark Connect server whose job writes a line every tenth of a second: ``owned_job.py URL FILE``."""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path

from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.spark.session import SparkSettings, open_session

SECONDS = 200


def write(file: str, number: int) -> bytes:
    """The task: it is ended with its job."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with Path(file).open("a") as out:
            out.write(f"{os.getpid()} {time.time()}\n")
        time.sleep(0.1)
    return b"%d" % number


if __name__ == "__main__":
    jobs = Jobs(open_session(SparkSettings(url=sys.argv[1]), "owner"), "a pipeline, of any name", 7)
    print(json.dumps(jobs.whereabouts()), flush=True)
    jobs.each(1, partial(write, sys.argv[2]))
