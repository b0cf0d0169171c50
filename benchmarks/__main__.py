"""Runs the benchmarks: ``python -m benchmarks [--records 1000000 5000000] [--rounds 5] [--out FOLDER]``."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from benchmarks import ours, plain
from benchmarks.data import generate, sound
from benchmarks.memory import watching
from benchmarks.picture import draw
from conduit_dagster.spark.session import SparkSettings, close_session, open_session


def main() -> None:
    """Prints a table, and writes results.json and a picture."""
    arguments = _arguments()
    work = Path(arguments.work)
    work.mkdir(parents=True, exist_ok=True)
    spark = open_session(SparkSettings(), "benchmarks")
    try:
        results = [
            _compare(spark, work, records, destinations, layout, arguments.rounds)
            for records in arguments.records
            for destinations, layout in ((["out"], "folder"), (["out"], "file"), (["out", "out2"], "folder"))
        ]
        floor = ours.summary(ours.smallest_batches(work / "floor", spark, arguments.steps))
    finally:
        close_session(spark)
    _write(Path(arguments.out), results, floor)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--records", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds, after one that warms up")
    parser.add_argument("--steps", type=int, default=60, help="steps of one record for the floor")
    parser.add_argument("--work", default="/tmp/conduit-benchmarks", help="folder for input and output")
    parser.add_argument("--out", default="benchmarks/results", help="folder for results.json and the picture")
    return parser.parse_args()


def _compare(
    spark: SparkSession, work: Path, records: int, destinations: Sequence[str], layout: str, rounds: int
) -> dict[str, Any]:
    """Ours, plain, ours again, plain again, in turn: the two A/A ratios say how much of a difference is noise."""
    source = generate(work / f"in-{records}.jsonl", records)
    runs: dict[str, Callable[[], float]] = {
        "ours": lambda: _ours(spark, work / "ours", source, destinations, layout),
        "plain": lambda: plain.run(work / "plain", spark, source, destinations),
        "ours again": lambda: _ours(spark, work / "ours", source, destinations, layout),
        "plain again": lambda: plain.run(work / "plain", spark, source, destinations),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    peaks: dict[str, dict[str, float]] = {}
    for number in range(rounds + 1):
        for name, run in runs.items():
            with watching() as peak:
                taken = run()
            _check(work, name, records, destinations)
            if number:
                seconds[name].append(taken)
                peaks[name] = {"python_mb": round(peak.python), "total_mb": round(peak.total)}
    return _result(records, destinations, layout, seconds, peaks)


def _ours(spark: SparkSession, root: Path, source: Path, destinations: Sequence[str], layout: str) -> float:
    ours.prepare(root, source, destinations, layout, "payload/json")
    return ours.run(root, spark)


def _check(work: Path, name: str, records: int, destinations: Sequence[str]) -> None:
    """Counts what is in the destinations, not what an engine reports."""
    root = work / name.split()[0]
    for destination in destinations:
        path = root / destination
        files = [path] if path.is_file() else [p for p in path.rglob("part-*") if p.is_file()]
        found = sum(_lines(file) for file in files)
        # plain Spark writes an empty object for a broken line
        wanted = records if name.startswith("plain") else sound(records)
        assert found == wanted, f"{name}: {found} lines in {destination}, not {wanted}"


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def _result(
    records: int, destinations: Sequence[str], layout: str, seconds: dict[str, list[float]], peaks: dict[str, Any]
) -> dict[str, Any]:
    def ratio(slow: str, fast: str) -> float:
        """By how much ``fast`` is faster, pair by pair."""
        return round(statistics.median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True)), 3)

    rates = {name: round(records / statistics.median(taken)) for name, taken in seconds.items()}
    result = {
        "records": records,
        "destinations": len(destinations),
        "layout": layout,
        "seconds": {name: [round(s, 3) for s in taken] for name, taken in seconds.items()},
        "records_per_second": rates,
        "ratio_to_plain": ratio("plain", "ours"),
        "control_ours": ratio("ours again", "ours"),
        "control_plain": ratio("plain again", "plain"),
        "peak": peaks,
    }
    print(_row(result), flush=True)
    return result


def _row(result: dict[str, Any]) -> str:
    rates = result["records_per_second"]
    return (
        f"{result['records']:>10,} records, {result['destinations']} destination(s), {result['layout']:<6} "
        f"ours {rates['ours']:>9,}/s  plain {rates['plain']:>9,}/s  ratio {result['ratio_to_plain']:.2f}  "
        f"A/A {result['control_ours']:.2f} {result['control_plain']:.2f}  "
        f"peak python {result['peak']['ours']['python_mb']} MB, all {result['peak']['ours']['total_mb']} MB"
    )


def _write(folder: Path, results: list[dict[str, Any]], floor: dict[str, float]) -> None:
    print(f"smallest batch: p50 {floor['p50']} ms, min {floor['min']} ms, p95 {floor['p95']} ms")
    folder.mkdir(parents=True, exist_ok=True)
    machine = {"cpus": _cpus(), "python": platform.python_version(), "pyspark": pyspark.__version__}
    everything = {"machine": machine, "throughput": results, "smallest_batch_ms": floor}
    (folder / "results.json").write_text(json.dumps(everything, indent=1) + "\n")
    draw(results, folder / "throughput.png")
    print(f"results: {folder / 'results.json'}, {folder / 'throughput.png'}")


def _cpus() -> int:
    import os

    return os.cpu_count() or 0


if __name__ == "__main__":
    main()
