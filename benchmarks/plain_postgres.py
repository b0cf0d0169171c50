"""The alternatives for PostgreSQL: Spark tasks that COPY without any guarantee, and a bare COPY of ready rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import csv
from pyspark.sql import SparkSession

from benchmarks.data import COLUMNS
from benchmarks.plain import worked

_CHUNK = 1 << 18


def spark_copy(spark: SparkSession, source: Path, url: str, tables: Sequence[str]) -> float:
    """Each task parses, processes and renders its rows once and copies them into every table; gives the seconds.

    A task that is repeated would write its rows twice; of a job that fails, some tasks' rows stay. Broken lines are
    dropped.
    """
    began = time.perf_counter()
    frame = worked(spark, source, "DROPMALFORMED").mapInArrow(partial(_copy_task, url, list(tables)), "rows long")
    frame.toArrow()
    return time.perf_counter() - began


def _copy_task(url: str, tables: list[str], batches: Iterator[Any]) -> Iterator[Any]:
    rows = 0
    with ExitStack() as stack:
        copies = [stack.enter_context(_copying(stack, url, table, "CSV")) for table in tables]
        for batch in batches:
            rows += batch.num_rows
            data = _as_csv(batch)
            for copy in copies:
                copy.write(data)
    yield pa.RecordBatch.from_pydict({"rows": [rows]})


def _copying(stack: ExitStack, url: str, table: str, form: LiteralString) -> Any:
    # left in reverse order: the copy ends before its connection commits
    connection = stack.enter_context(psycopg.connect(url))
    names = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT {})")
    return connection.cursor().copy(statement.format(sql.Identifier(table), names, sql.SQL(form)))


def _as_csv(batch: Any) -> bytes:
    sink = pa.BufferOutputStream()
    csv.write_csv(batch, sink, csv.WriteOptions(include_header=False))
    return sink.getvalue().to_pybytes()


def bare_copy(rows: Path, url: str, tables: Sequence[str]) -> float:
    """One connection copies a file of rows into one table after the other; gives the seconds."""
    began = time.perf_counter()
    for table in tables:
        with ExitStack() as stack, rows.open("rb") as file:
            copy = stack.enter_context(_copying(stack, url, table, "TEXT"))
            while data := file.read(_CHUNK):
                copy.write(data)
    return time.perf_counter() - began
