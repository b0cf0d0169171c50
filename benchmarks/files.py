"""File to files, beside plain Spark."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from benchmarks import engine
from benchmarks.bench import Bench
from benchmarks.compare import Side, compare
from benchmarks.data import SCHEMA, generate, sound
from benchmarks.setup import Setup, to_file

_STEPS = 5
"""Number of steps in a run with overlapping steps."""


def files(bench: Bench, strategy: str, layout: str, destinations: int = 1) -> dict[str, Any]:
    """Compare ``log: positions`` with plain Spark."""
    return compare([_ours(bench, _setup(strategy, layout, destinations)), _plain(bench, destinations)], *_size(bench))


def logged(bench: Bench, destinations: int = 1) -> dict[str, Any]:
    """Compare ``log: records`` with ``log: positions`` and plain Spark; folders, exactly once."""
    setup = _setup("exactly-once", "folder", destinations)
    sides = [
        _ours(bench, replace(setup, log="records")),
        _ours(bench, setup, "log: positions"),
        _plain(bench, destinations),
    ]
    return compare(sides, *_size(bench))


def in_flight(bench: Bench) -> dict[str, Any]:
    """Compare two steps in flight with one, in batches of a fifth, and plain Spark; one ordered file, exactly once."""
    setup = replace(_setup("exactly-once", "file", 1), batch=bench.records // _STEPS)
    sides = [_ours(bench, replace(setup, in_flight=2)), _ours(bench, setup, "one in flight"), _plain(bench, 1)]
    return compare(sides, *_size(bench))


def _setup(strategy: str, layout: str, destinations: int) -> Setup:
    return Setup([to_file(name, layout) for name in _names(destinations)], strategy)


def _names(destinations: int) -> list[str]:
    return [f"out{number}" for number in range(destinations)]


def _size(bench: Bench) -> tuple[int, int]:
    return bench.records, bench.rounds


def _ours(bench: Bench, setup: Setup, name: str = "ours") -> Side:
    root = bench.work / "ours"
    prepare = partial(setup.write, root, generate(bench.work, bench.records))
    count = partial(counts, root, [one["id"] for one in setup.destinations])
    return Side(name, prepare, lambda: engine.drain(root, bench.spark), count, sound(bench.records))


def _plain(bench: Bench, destinations: int) -> Side:
    root, names, source = bench.work / "plain", _names(destinations), generate(bench.work, bench.records)
    # plain Spark writes an empty object for a broken line
    return Side(
        "plain Spark",
        partial(clear, root),
        lambda: plain_spark(root, bench.spark, source, names),
        partial(counts, root, names),
        bench.records,
    )


def clear(root: Path) -> None:
    """Remove the output of the last run."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)


def plain_spark(root: Path, spark: SparkSession, source: Path, outputs: Sequence[str], schema: str = SCHEMA) -> float:
    """Read, transform and write JSON once per output, with an explicit schema; return the seconds.

    The alternative for files. Broken lines become empty objects; nothing is synced.
    """
    began = time.perf_counter()
    for name in outputs:
        frame = spark.read.schema(schema).json(str(source))
        frame = frame.withColumn("cents", f.col("amount") * 100).withColumnRenamed("name", "fullname").drop("note")
        frame.write.json(str(root / name))
    return time.perf_counter() - began


def counts(root: Path, names: Sequence[str]) -> list[int]:
    """Return the number of lines of each output, a file or a folder of parts."""
    return [sum(map(_lines, _parts(root / name))) for name in names]


def _parts(path: Path) -> list[Path]:
    return [path] if path.is_file() else [part for part in path.rglob("part-*") if part.is_file()]


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
