"""Parquet to Parquet and to Delta, without a processor, beside plain Spark."""

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks import engine
from benchmarks.bench import Bench
from benchmarks.compare import Side, compare
from benchmarks.data import SCHEMA, generate
from benchmarks.files import clear
from benchmarks.setup import write_pipeline

_FILES = 4


def columnar(bench: Bench, plugin: str) -> dict[str, Any]:
    """Write to ``plugin`` exactly once, beside plain Spark: Parquet with the same compression, nothing synced."""
    source, ours, theirs = _source(bench), bench.work / "ours", bench.work / "plain"
    sides = [
        Side(
            "ours",
            partial(_write, ours, source, plugin),
            lambda: engine.drain(ours, bench.spark),
            partial(_rows, ours),
            bench.records,
        ),
        Side(
            "plain Spark",
            partial(clear, theirs),
            lambda: _plain(bench, source, theirs),
            partial(_rows, theirs),
            bench.records,
        ),
    ]
    return compare(sides, bench.records, bench.rounds)


def _source(bench: Bench) -> Path:
    """Return the lines as Parquet files, written by Spark; created once."""
    folder = bench.work / f"in-{bench.records}.parquet"
    if not (folder / "_SUCCESS").exists():
        lines = bench.spark.read.schema(SCHEMA).json(str(generate(bench.work, bench.records)))
        lines.repartition(_FILES).write.mode("overwrite").parquet(str(folder))
    return folder


def _write(root: Path, source: Path, plugin: str) -> None:
    shutil.rmtree(root, ignore_errors=True)
    connectors = [
        {"id": "in", "type": "source", "plugin": "builtin:parquet", "settings": {"path": str(source)}},
        {"id": "out", "type": "destination", "plugin": f"builtin:{plugin}", "settings": {"path": "./out"}},
    ]
    pipeline = {
        "id": "bench",
        "trigger": "available-now",
        "delivery": {"strategy": "exactly-once"},
        "connectors": connectors,
        "dead-letter-queue": {"plugin": "builtin:file", "settings": {"path": "./dead.jsonl"}},
    }
    write_pipeline(root, pipeline)


def _plain(bench: Bench, source: Path, root: Path) -> float:
    began = time.perf_counter()
    frame = bench.spark.read.parquet(str(source))
    frame.write.option("compression", "zstd").parquet(str(root / "out"))
    return time.perf_counter() - began


def _rows(root: Path) -> list[int]:
    files = [path for path in (root / "out").rglob("part-*.parquet") if "taging" not in str(path.relative_to(root))]
    return [sum(pq.read_metadata(path).num_rows for path in files)]
