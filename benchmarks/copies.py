"""The initial copy of a PostgreSQL table: read and counted, and moved into another table, beside psycopg alone."""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from benchmarks import engine
from benchmarks.bench import Bench
from benchmarks.compare import Side, compare
from benchmarks.setup import to_table, write_pipeline
from benchmarks.source_alone import read_alone

_TABLE, _TARGET = "copied", "copy"
_FETCHED = 10_000
_COLUMNS = "id bigint PRIMARY KEY, name text, age bigint, city text, amount double precision, note text, at timestamptz"
_FILL = f"""
    INSERT INTO {_TABLE} SELECT i, 'user-' || i %% 9973, i %% 90, 'Zagreb', i / 7.0, 'some text here', now()
    FROM generate_series(0, %s::bigint - 1) i
"""


def copy_read(bench: Bench) -> dict[str, Any]:
    """Measure the source alone, one task's work, beside a cursor on the server that returns rows as dictionaries."""
    _fill(bench)
    sides = [_counted(bench, "ours", _source_alone), _counted(bench, "psycopg, rows as dicts", _cursor)]
    return compare(sides, bench.records, bench.rounds)


def copy_table(bench: Bench) -> dict[str, Any]:
    """Measure a pipeline from table to table, exactly once, beside one COPY that is passed on to another."""
    _fill(bench)
    sides = [_into_table(bench, "ours", _pipeline), _into_table(bench, "psycopg, COPY to COPY", _copy_to_copy)]
    return compare(sides, bench.records, bench.rounds)


def _fill(bench: Bench) -> None:
    with psycopg.connect(bench.database.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE IF NOT EXISTS {_TABLE} ({_COLUMNS})")
        if connection.execute(f"SELECT FROM {_TABLE} LIMIT 1").fetchone() is None:
            connection.execute(_FILL, (bench.records,))
            connection.execute(f"VACUUM ANALYZE {_TABLE}")


def _settings(bench: Bench) -> dict[str, Any]:
    return {"url": bench.database.url, "tables": _TABLE, "snapshotMode": "initial_only"}


# -- read and counted ------------------------------------------------------------------------------------------------


def _counted(bench: Bench, name: str, read: Any) -> Side:
    found = [0]

    def run() -> float:
        began = time.perf_counter()
        found[0] = read(bench)
        return time.perf_counter() - began

    return Side(name, lambda: None, run, lambda: found, bench.records)


def _source_alone(bench: Bench) -> int:
    return read_alone(_settings(bench), bench.work / "ours")


def _cursor(bench: Bench) -> int:
    found = 0
    with psycopg.connect(bench.database.url) as connection, connection.cursor("rows", row_factory=dict_row) as cursor:
        cursor.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(_TABLE)))
        while rows := cursor.fetchmany(_FETCHED):
            found += len(rows)
    return found


# -- into a table ----------------------------------------------------------------------------------------------------


def _into_table(bench: Bench, name: str, run: Any) -> Side:
    return Side(
        name, partial(_prepare, bench), partial(run, bench), lambda: [bench.database.count(_TARGET)], bench.records
    )


def _prepare(bench: Bench) -> None:
    source = {"id": "in", "type": "source", "plugin": "builtin:postgres", "settings": _settings(bench)}
    pipeline = {
        "id": "bench",
        "trigger": "available-now",
        "delivery": {"strategy": "exactly-once"},
        "connectors": [source, to_table(_TARGET, bench.database.url)],
        "dead-letter-queue": {"plugin": "builtin:file", "settings": {"path": "./dead.jsonl"}},
    }
    shutil.rmtree(bench.work / "ours", ignore_errors=True)
    write_pipeline(bench.work / "ours", pipeline)
    with psycopg.connect(bench.database.url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS conduit_deliveries")
        connection.execute(f"DROP TABLE IF EXISTS {_TARGET}")
        connection.execute(f"CREATE TABLE {_TARGET} ({_COLUMNS}) WITH (autovacuum_enabled = false)")
        connection.execute("CHECKPOINT")


def _pipeline(bench: Bench) -> float:
    return engine.drain(bench.work / "ours", bench.spark)


def _copy_to_copy(bench: Bench) -> float:
    began, url = time.perf_counter(), bench.database.url
    with (
        closing(psycopg.connect(url)) as reading,
        psycopg.connect(url) as writing,
        reading.cursor().copy(f"COPY {_TABLE} TO STDOUT (FORMAT binary)") as rows,
        writing.cursor().copy(f"COPY {_TARGET} FROM STDIN (FORMAT binary)") as copy,
    ):
        for data in rows:
            copy.write(data)
    return time.perf_counter() - began
