"""File to PostgreSQL, exactly once, beside Spark tasks that COPY without a guarantee and a bare COPY."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks import engine
from benchmarks.bench import Bench
from benchmarks.compare import Side, compare
from benchmarks.data import generate, rendered, sound
from benchmarks.plain_postgres import bare_copy, spark_copy
from benchmarks.setup import Setup, to_table

_STEPS = 5
"""Number of steps in a run with overlapping steps."""


def tables(bench: Bench, destinations: int = 1) -> dict[str, Any]:
    """Measure sequential steps, into one table or several."""
    names = _names(destinations)
    sides = [_ours(bench, _setup(bench, names), names), _spark(bench, names), _bare(bench, names)]
    return compare(sides, bench.records, bench.rounds)


def tables_in_flight(bench: Bench) -> dict[str, Any]:
    """Measure two steps in flight beside one, both in batches of a fifth."""
    names = _names(1)
    setup = replace(_setup(bench, names), batch=bench.records // _STEPS)
    sides = [
        _ours(bench, replace(setup, in_flight=2), names),
        _ours(bench, setup, names, "one in flight"),
        _spark(bench, names),
    ]
    return compare(sides, bench.records, bench.rounds)


def _names(destinations: int) -> list[str]:
    return [f"out{number}" for number in range(destinations)]


def _setup(bench: Bench, names: list[str]) -> Setup:
    return Setup([to_table(name, bench.database.url) for name in names], "exactly-once")


def _ours(bench: Bench, setup: Setup, names: list[str], name: str = "ours") -> Side:
    root, source = bench.work / "ours", generate(bench.work, bench.records)

    def prepare() -> None:
        bench.database.clear(names)
        setup.write(root, source)

    return _side(bench, names, name, prepare, lambda: engine.drain(root, bench.spark))


def _spark(bench: Bench, names: list[str]) -> Side:
    source = generate(bench.work, bench.records)
    run = partial(spark_copy, bench.spark, source, bench.database.url, names)
    return _side(bench, names, "Spark tasks with COPY", partial(bench.database.clear, names), run)


def _bare(bench: Bench, names: list[str]) -> Side:
    run = partial(bare_copy, rendered(bench.work, bench.records), bench.database.url, names)
    return _side(bench, names, "bare COPY", partial(bench.database.clear, names), run)


def _side(bench: Bench, names: list[str], name: str, prepare: Callable[[], None], run: Callable[[], float]) -> Side:
    return Side(name, prepare, run, lambda: [bench.database.count(table) for table in names], sound(bench.records))
