"""Steps of one record: the cost of the smallest step, and whether memory grows with their number."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import engine
from benchmarks.bench import Bench
from benchmarks.processes import Memory, memory
from benchmarks.setup import KINDS, TABLE, Setup, needs_database, setup_of
from conduit_dagster.engine.report import RunProgress, StepReport
from conduit_dagster.engine.stop import StopFlag

_SAMPLES = 12
_WARM = 1 / 6
"""Fraction of the steps for warming up: 50 of 300."""
_JOBS = 60


def trickles(bench: Bench) -> dict[str, Any]:
    """Measure each kind of pipeline, with Spark's own smallest Python job before and after it."""
    return {"kinds": {kind: _one(bench, kind) for kind in KINDS}}


def _one(bench: Bench, kind: str) -> dict[str, Any]:
    url = ""
    if needs_database(kind):
        url = bench.database.url
        bench.database.clear([TABLE])
    before = _smallest_jobs(bench.spark)
    run = _Trickle(bench.work / "trickle", setup_of(kind, url), bench.steps)
    run.run(bench.spark)
    after = _smallest_jobs(bench.spark)
    step = _summary(run.milliseconds[int(bench.steps * _WARM) :])
    job = statistics.median([*before, *after])
    return {
        "step_ms": step,
        "spark_job_ms": {"p50": round(job, 1), "control": _ratio(after, before)},
        "ratio": round(step["p50"] / job, 2),
        "memory": run.memory_json(),
    }


class _Trickle:
    """Feeds the next line when the previous step is done: steps follow each other without the wait between polls."""

    def __init__(self, root: Path, setup: Setup, steps: int) -> None:
        self._root, self._setup, self._steps = root, setup, steps
        self._source = root.with_name("trickle.jsonl")
        self._stop = StopFlag()
        self._every = max(1, steps // _SAMPLES)
        self._began = 0.0
        self.milliseconds: list[float] = []
        """Duration of each step: plan, stage, publish, commits and acks."""
        self.memory: dict[int, Memory] = {}
        """Memory by the number of steps done."""

    def run(self, spark: SparkSession) -> None:
        self._source.write_text("")
        self._setup.write(self._root, self._source)
        self._next()
        engine.follow(self._root, spark, self._stop, self._observe)

    def _observe(self, step: StepReport, progress: RunProgress) -> None:
        self.milliseconds.append((time.perf_counter() - self._began) * 1000)
        assert progress.read == len(self.milliseconds), "a step of more than one record"
        if progress.steps % self._every == 0:
            self.memory[progress.steps] = memory()
        if progress.steps < self._steps:
            self._next()
        else:
            self._stop.request()

    def _next(self) -> None:
        with self._source.open("a") as file:
            file.write(f'{{"id":{len(self.milliseconds)},"name":"n","age":1,"city":"c","amount":1.5,"note":"x"}}\n')
        self._began = time.perf_counter()

    def memory_json(self) -> dict[str, Any]:
        """Return the samples, and the growth of all Python processes after warm-up."""
        warm = {steps: seen.python for steps, seen in self.memory.items() if steps >= self._steps * _WARM}
        slope = statistics.linear_regression(list(warm), list(warm.values())).slope
        return {
            "python_mb": {str(steps): round(seen.python, 1) for steps, seen in self.memory.items()},
            "total_mb": {str(steps): round(seen.total, 1) for steps, seen in self.memory.items()},
            "python_mb_per_100_steps": round(slope * 100, 2),
        }


def _summary(milliseconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(milliseconds)
    return {
        "p50": round(statistics.median(ordered), 1),
        "min": round(ordered[0], 1),
        "p95": round(ordered[int(len(ordered) * 0.95)], 1),
    }


def _ratio(these: Sequence[float], those: Sequence[float]) -> float:
    return round(statistics.median(these) / statistics.median(those), 3)


def _smallest_jobs(spark: SparkSession) -> list[float]:
    """Return milliseconds of jobs of one row through one Python task, each with its own function, like a step."""
    found: list[float] = []
    for number in range(_JOBS):
        began = time.perf_counter()
        spark.range(0, 1, 1, 1).mapInArrow(partial(_same, number), "id long").toArrow()
        found.append((time.perf_counter() - began) * 1000)
    return found[_JOBS // 4 :]  # the first ones warm up


def _same(number: int, batches: Any) -> Any:
    del number
    yield from batches
