"""CASES B8 through Spark Connect: what gRPC keeps of a worker's error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CLIENT = """
import json, sys
from conduit_dagster.recovery.classify import classify
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.spark.session import SparkSettings, close_session, open_session

spark = open_session(SparkSettings(sys.argv[1]), "b8")
spark.conf.set("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "false")

def raising(error, cause=None):
    def task(batches):
        for _ in batches:
            raise error from cause
        yield from ()
    return task

gone = FatalError("it is gone " + "x" * 5000, code="mine.gone", node="p:out")
tasks = [
    raising(gone),
    raising(ValueError("words"), gone),
    raising(ValueError(json.dumps({"code": 422, "message": "no such table"}))),
    raising(ValueError("words")),
]
for task in tasks:
    try:
        spark.range(1).mapInArrow(task, "id long").collect()
    except Exception as error:
        found = classify(error)
        print(json.dumps([found.fatal, found.code, found.message[:20], len(found.message), found.node]))
close_session(spark)
"""


@pytest.mark.slow
def test_b08_through_connect(connect_server: Any) -> None:
    """In a process of its own: one that has a classic session cannot also be a client."""
    env = {**os.environ, **connect_server.env, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CLIENT, connect_server.url]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        [True, "mine.gone", "it is gone xxxxxxxxx", 5011, "p:out"],
        [True, "mine.gone", "it is gone xxxxxxxxx", 5011, "p:out"],
        [True, "422", "no such table", 13, None],
        [False, "pipeline.error", "ValueError: words", 17, None],
    ], done.stderr
