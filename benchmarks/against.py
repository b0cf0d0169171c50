"""The same work in another engine's binary and here, each as a whole process: with N records, and with 5N.

The difference over 4N is the cost of an additional record, without the start. CPU is that of the whole machine,
including servers left running and kernel threads.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.compare import Side, Taken, Times, cpu, ratio, seconds, take_turns
from benchmarks.data import generate, sound
from benchmarks.files import counts
from benchmarks.other_engines import OUTPUT, Engine, document_of, expected, ours
from benchmarks.whole import TEMPORARY, run_to_its_end, run_until_there
from conduit_dagster.spark.server import stop_server

AGAINST = "against-"
"""Prefix of the names of these measures."""
TIMES = 5
_SHARE = 10
"""Fraction of the records for the smaller run: other engines take minutes for a million."""
_SAMPLE = 1_000


def against(bench: Bench, kind: str) -> dict[str, Any]:
    """Run whole processes of both engines in turn; return the cost of an additional record in each."""
    theirs = bench.engines[kind]
    both = (ours(theirs), theirs)
    few = bench.records // _SHARE
    sizes = (few, few * TIMES)
    _make_archive()
    sides = [_side(bench, engine, records) for records in sizes for engine in both]
    times = list(take_turns(sides, bench.rounds).values())
    small, large = (times[0], times[1]), (times[2], times[3])
    return {
        "engine": f"{theirs.name} {theirs.version}",
        "records": list(sizes),
        "rows": [
            _whole(f"whole process, {sizes[0]:,} records", *small),
            _whole(f"whole process, {sizes[1]:,} records", *large),
            _further(small, large, sizes[1] - sizes[0]),
        ],
        "runs": {side.name: [run._asdict() for run in own.all] for side, own in zip(sides, times, strict=True)},
    }


def seconds_of(bench: Bench) -> float:
    """Return an estimate: our start takes ten seconds, other engines move 20,000 records per second."""
    few = bench.records // _SHARE
    return 2 * (bench.rounds + 1) * (2 * 12 + (1 + TIMES) * few / 20_000)


def _make_archive() -> None:
    """Create the class-data archive for a faster start, normally made in the background, which would be measured."""
    command = [sys.executable, "-m", "conduit_dagster.spark.archive_maker"]
    subprocess.run(command, env={**os.environ, "CONDUIT_SPARK_ARCHIVE_DELAY": "0"}, check=False)


def _side(bench: Bench, engine: Engine, records: int) -> Side:
    root, wanted = bench.work / "against" / engine.name, sound(records)
    output = root / OUTPUT

    def prepare() -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        engine.write(root, generate(bench.work, records))

    def count() -> list[int]:
        check(engine, output, wanted)
        return counts(root, [OUTPUT])

    return Side(f"{engine.name}, {records:,}", prepare, lambda: _run(engine, root, output, wanted), count, wanted)


def _run(engine: Engine, root: Path, output: Path, wanted: int) -> Taken:
    try:
        if engine.ends:
            return run_to_its_end(engine.command, root)
        return run_until_there(engine.command, root, output, wanted)
    finally:
        # our command leaves its Spark server and the parent of its workers, which ends with its socket, to the next
        # command
        stop_server(root / ".conduit")
        shutil.rmtree(root / TEMPORARY, ignore_errors=True)


def check(engine: Engine, output: Path, records: int) -> None:
    """Compare a sample of the lines, spread over all of them, with the expected output of the work."""
    with output.open("rb") as file:
        found = [document_of(engine, line) for line in islice(file, 0, None, max(1, records // _SAMPLE))]
    wrong = [document for document in found if document != expected(document["id"])]
    assert not wrong, f"{engine.name}: {wrong[0]}, not {expected(wrong[0]['id'])}"
    assert len({document["id"] for document in found}) == len(found), f"{engine.name}: records came twice"


def _whole(what: str, our: Times, their: Times) -> dict[str, Any]:
    """Return seconds, and how much faster and cheaper in CPU we are: medians of the pairs."""
    return {
        "what": what,
        "unit": "s",
        "ours": round(statistics.median(seconds(our.all)), 2),
        "theirs": round(statistics.median(seconds(their.all)), 2),
        "ratio": ratio(seconds(their.all), seconds(our.all)),
        "controls": [our.control, their.control],
        "cpu_ours": round(statistics.median(cpu(our.all)), 2),
        "cpu_theirs": round(statistics.median(cpu(their.all)), 2),
        "cpu_ratio": ratio(cpu(their.all), cpu(our.all)),
    }


def _further(small: tuple[Times, Times], large: tuple[Times, Times], records: int) -> dict[str, Any]:
    """Return microseconds per additional record. Starts vary by more than some engines take, so medians are divided."""
    pairs = list(zip(small, large, strict=True))
    clock = [_each(seconds(few.all), seconds(more.all), records) for few, more in pairs]
    used = [_each(cpu(few.all), cpu(more.all), records) for few, more in pairs]
    first = [_each(seconds(few.first), seconds(more.first), records) for few, more in pairs]
    again = [_each(seconds(few.again), seconds(more.again), records) for few, more in pairs]
    return {
        "what": "each further record",
        "unit": "µs",
        "ours": round(clock[0], 2),
        "theirs": round(clock[1], 2),
        "ratio": _divided(clock[1], clock[0]),
        "controls": [_divided(slow, fast) for slow, fast in zip(again, first, strict=True)],
        "cpu_ours": round(used[0], 2),
        "cpu_theirs": round(used[1], 2),
        "cpu_ratio": _divided(used[1], used[0]),
    }


def _each(few: Sequence[float], more: Sequence[float], records: int) -> float:
    """Return microseconds per record that only the larger runs have."""
    return statistics.median(b - a for a, b in zip(few, more, strict=True)) / records * 1e6


def _divided(slow: float, fast: float) -> float | None:
    """Return the ratio; None if the runs were too short to separate the records from the start."""
    return round(slow / fast, 3) if slow > 0 and fast > 0 else None
