"""Peak memory over a backlog, in a separate process: ``python -m benchmarks.backlog KIND RECORDS BATCH FOLDER``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import engine
from benchmarks.bench import Bench
from benchmarks.data import generate
from benchmarks.processes import Peak, watching
from benchmarks.setup import KINDS, TABLE, needs_database, setup_of
from conduit_dagster.spark.session import SparkSettings, close_session, open_session

_URL = "BENCHMARK_DATABASE"
TIMES = 5


def backlogs(bench: Bench) -> dict[str, Any]:
    """Run each kind of pipeline over N records and over five times as many, in batches of N."""
    return {"records": bench.records, "times": TIMES, "kinds": {kind: _both(bench, kind) for kind in KINDS}}


def _both(bench: Bench, kind: str) -> dict[str, Any]:
    once, more = _apart(bench, kind, 1), _apart(bench, kind, TIMES)
    return {"once": once, "more": more, "ratio": round(more["python_mb"] / once["python_mb"], 3)}


def _apart(bench: Bench, kind: str, times: int) -> dict[str, Any]:
    """Measure in a fresh process, unaffected by memory of other measures."""
    env = dict(os.environ)
    if needs_database(kind):
        bench.database.clear([TABLE])
        env[_URL] = bench.database.url  # not an argument: those are visible to all users
    numbers = [str(bench.records * times), str(bench.records)]
    command = [sys.executable, "-m", "benchmarks.backlog", kind, *numbers, str(bench.work)]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _measure(kind: str, records: int, batch: int, work: Path) -> dict[str, Any]:
    root, source, peak = work / "backlog", generate(work, records), Peak()
    setup_of(kind, os.environ.get(_URL, ""), batch).write(root, source)
    spark = open_session(SparkSettings(), "benchmarks")
    try:
        with watching(peak, 0.1):
            seconds = engine.drain(root, spark)
    finally:
        close_session(spark)
    return {"seconds": round(seconds, 3), **peak.as_json()}


if __name__ == "__main__":
    _kind, _records, _batch, _work = sys.argv[1:]
    print(json.dumps(_measure(_kind, int(_records), int(_batch), Path(_work))))
