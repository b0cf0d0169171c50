"""The alternatives for PostgreSQL: Spark tasks that COPY without any guarantee, and a bare COPY of prepared rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import SparkSession

from benchmarks.data import COLUMNS

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
