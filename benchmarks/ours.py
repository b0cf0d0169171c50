"""This engine on the benchmark's work: read, four operations, write; broken lines to the dead letters."""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from ruamel.yaml import YAML

from conduit_dagster.config.project import Project
from conduit_dagster.engine.catalogue import open_catalogue
from conduit_dagster.engine.report import Progress, StepReport
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.engine.supervisor import RunOptions, run_pipeline
from conduit_dagster.state.database import open_database

_AFTER = ".Payload.After"
PROCESSORS: list[dict[str, Any]] = [
    {"id": "decode", "plugin": "json.decode", "settings": {"field": _AFTER}},
    {
        "id": "cents",
        "plugin": "field.set",
        "settings": {"field": f"{_AFTER}.cents", "expression": "after.amount * 100"},
    },
    {"id": "rename", "plugin": "field.rename", "settings": {"mapping": f"{_AFTER}.name:fullname"}},
    {"id": "drop", "plugin": "field.exclude", "settings": {"fields": f"{_AFTER}.note"}},
]


def prepare(root: Path, source: Path, destinations: Sequence[str], layout: str, text: str) -> None:
    """A fresh project that reads ``source`` and writes to each destination."""
    shutil.rmtree(root, ignore_errors=True)
    (root / "pipelines").mkdir(parents=True)
    outputs = [
        {
            "id": name,
            "type": "destination",
            "plugin": "builtin:file",
            "settings": {"path": f"./{name}", "layout": layout, "sdk.record.format": text},
        }
        for name in destinations
    ]
    inputs = {"id": "in", "type": "source", "plugin": "builtin:file", "settings": {"path": str(source)}}
    queue = {"plugin": "builtin:file", "settings": {"path": "./dead.jsonl"}, "window-size": 0}
    pipeline = {
        "id": "bench",
        "trigger": "available-now",
        "connectors": [inputs, *outputs],
        "processors": PROCESSORS,
        "dead-letter-queue": queue,
    }
    with (root / "pipelines" / "bench.yaml").open("w") as file:
        YAML().dump({"version": "2.2", "pipelines": [pipeline]}, file)


def run(
    root: Path, spark: SparkSession, drain: bool = True, stop: StopFlag | None = None, observe: Any = None
) -> float:
    """Runs the project's pipeline to its end; the seconds it took, start-up recovery and all commits included."""
    catalogue = open_catalogue(Project.find(root, {}))
    bound = catalogue.get("bench")
    assert bound is not None, catalogue.findings
    database = open_database(catalogue.project.state_url)
    options = RunOptions(catalogue.project.staging_url, drain=drain)
    began = time.perf_counter()
    result = run_pipeline(bound, spark, database, options, stop or StopFlag(), observe or (lambda step, progress: None))
    seconds = time.perf_counter() - began
    database.dispose()
    assert result.error is None, result.error
    return seconds


def smallest_batches(root: Path, spark: SparkSession, steps: int) -> list[float]:
    """Milliseconds from the append of one line to its step being done and acked, for so many steps."""
    source = root.with_name("trickle.jsonl")
    source.write_text("")
    prepare(root, source, ["out"], "file", "payload/json")
    stop, done, seconds = StopFlag(), threading.Semaphore(0), list[float]()

    def observe(step: StepReport, progress: Progress) -> None:
        seconds.append(step.seconds * 1000)
        done.release()

    runner = threading.Thread(target=run, args=(root, spark, False, stop, observe))
    runner.start()
    for i in range(steps):
        with source.open("a") as file:
            file.write(f'{{"id":{i},"name":"n","amount":1.5,"note":"x"}}\n')
        done.acquire()
    stop.request()
    runner.join()
    return seconds[len(seconds) // 4 :]  # the first ones warm up


def summary(values: list[float]) -> dict[str, float]:
    """Median and spread."""
    ordered = sorted(values)
    return {
        "p50": round(statistics.median(ordered), 1),
        "min": round(ordered[0], 1),
        "p95": round(ordered[int(len(ordered) * 0.95)], 1),
    }
