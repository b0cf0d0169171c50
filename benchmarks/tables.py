"""File to PostgreSQL, exactly once, beside Spark tasks that COPY without a guarantee and a bare COPY."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import SparkSession

from benchmarks import engine
from benchmarks.bench import Bench
from benchmarks.compare import Side, compare
from benchmarks.data import COLUMNS, generate, rendered, sound
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


# -- the alternatives ----------------------------------------------------------------------------------------------

_CHUNK = 1 << 18
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def spark_copy(spark: SparkSession, source: Path, url: str, tables: Sequence[str]) -> float:
    """Let each task parse, transform and render its rows once and copy them into every table; return the seconds.

    A repeated task would write its rows twice; of a failed job, some tasks' rows remain. Broken lines are dropped.
    Measured faster than ``read.json``, column expressions and ``pyarrow.csv``.
    """
    began = time.perf_counter()
    frame = spark.read.text(str(source)).mapInArrow(partial(_copy_task, url, list(tables)), "rows long")
    frame.toArrow()
    return time.perf_counter() - began


def _copy_task(url: str, tables: list[str], batches: Iterator[Any]) -> Iterator[Any]:
    count = 0
    with ExitStack() as stack:
        copies = [_copying(stack, url, table) for table in tables]
        for batch in batches:
            rows = list(_rows(batch.column(0).to_pylist()))
            count += len(rows)
            data = "".join(rows).encode()
            for copy in copies:
                copy.write(data)
    yield pa.RecordBatch.from_pydict({"rows": [count]})


def _rows(lines: list[str]) -> Iterator[str]:
    """Yield the rows, for these fields and values only: nothing is escaped, nothing is missing."""
    for line in lines:
        try:
            one = _decode(line)
        except msgspec.DecodeError:
            continue
        amount = one["amount"]
        yield f"{one['id']}\t{one['name']}\t{one['age']}\t{one['city']}\t{amount!r}\t{amount * 100!r}\n"


def bare_copy(rows: Path, url: str, tables: Sequence[str]) -> float:
    """Copy a file of rows into one table after the other, each on its own connection; return the seconds."""
    began = time.perf_counter()
    for table in tables:
        with ExitStack() as stack, rows.open("rb") as file:
            copy = _copying(stack, url, table)
            while data := file.read(_CHUNK):
                copy.write(data)
    return time.perf_counter() - began


def _copying(stack: ExitStack, url: str, table: str) -> psycopg.Copy:
    # left in reverse order: the copy ends before its connection commits
    connection = stack.enter_context(psycopg.connect(url))
    names = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table), names)
    return stack.enter_context(connection.cursor().copy(statement))
