"""Changes of a PostgreSQL slot: read and counted, moved into a file and a table, beside Debezium's embedded engine.

Conduit's own connector is beside it too where its binary is (``CONDUIT_POSTGRES_CONNECTOR``).

Every run reads the same changes: each gets a copy of one slot that was made before them. CPU is that of the readers,
without the server's, which decodes the same for all.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from benchmarks import engine
from benchmarks.bench import Bench
from benchmarks.compare import Side, Taken, compare
from benchmarks.processes import cpu_seconds, cpu_seconds_of
from benchmarks.setup import to_table, write_pipeline
from benchmarks.source_alone import read_alone
from tests.lab.conduit_connector import PLAIN_RECORDS, ConduitConnector, postgres_connector
from tests.lab.debezium import command, properties
from tests.lab.postgres_tables import drop_slots

_SHARE = 5
"""Fraction of the records per run: Debezium takes a minute for a million changes."""
_TABLE, _TARGET = "changed", "target"
_BASE = "bench_base"
_TRANSACTION = 500
_HEAP = ("-XX:+UseG1GC", "-Xmx1g")
_OUTPUT = "out.jsonl"
_TO_FILE = {"id": "out", "type": "destination", "plugin": "builtin:file", "settings": {"path": f"./{_OUTPUT}"}}
# without a time: Conduit's connector can't send one in a document
_COLUMNS = "id bigint PRIMARY KEY, name text, age bigint, city text, amount double precision, note text, at text"
_INSERT = f"""
    INSERT INTO {_TABLE} SELECT i, 'user-' || i %% 9973, i %% 90, 'Zagreb', i / 7.0, 'some text here', now()::text
    FROM generate_series(%s::bigint, %s::bigint - 1) i
"""
_UPDATE = f"UPDATE {_TABLE} SET amount = amount * 2, note = 'another text' WHERE id >= %s AND id < %s"
_DELETE = f"DELETE FROM {_TABLE} WHERE id >= %s AND id < %s"
_PARTS: tuple[tuple[LiteralString, float], ...] = ((_INSERT, 0.6), (_UPDATE, 0.3), (_DELETE, 0.1))
"""Statements, with their fraction of the changes."""


def slots_read(bench: Bench) -> dict[str, Any]:
    """Measure the source alone beside Debezium's, whose records are not serialised either, and Conduit's."""
    changes = _made(bench)
    sides = [
        _side(bench, "ours", partial(_source_alone, bench, changes)),
        _side(bench, "Debezium, counted", partial(_debezium, bench, changes, "")),
    ]
    if (binary := postgres_connector()) is not None:
        sides.append(_side(bench, "Conduit's connector", partial(_conduit, bench, changes, binary)))
    return compare(sides, changes, bench.rounds)


def slots_into_file(bench: Bench) -> dict[str, Any]:
    """Measure a pipeline into an ordered file, exactly once, beside Debezium's JSON lines, synced once at the end."""
    changes, output = _made(bench), bench.work / "slots" / _OUTPUT
    ours = bench.work / "ours"
    sides = [
        _side(bench, "ours", partial(_pipeline, bench, ours, _TO_FILE), lambda: [_lines(ours / _OUTPUT)]),
        _side(bench, "Debezium", partial(_debezium, bench, changes, str(output)), lambda: [_lines(output)]),
    ]
    return compare(sides, changes, bench.rounds)


def slots_into_table(bench: Bench) -> dict[str, Any]:
    """Measure a pipeline that applies the changes to another table, exactly once, beside Debezium that only counts."""
    changes, database, root = _made(bench), bench.database, bench.work / "ours"
    left = sum(round(changes * part) for _, part in _PARTS[:1]) - sum(round(changes * part) for _, part in _PARTS[2:])

    def prepare() -> None:
        _prepare(bench)
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS conduit_deliveries")
            connection.execute(f"DROP TABLE IF EXISTS {_TARGET}")
            connection.execute(f"CREATE TABLE {_TARGET} ({_COLUMNS})")

    run = partial(_pipeline, bench, root, to_table(_TARGET, database.url))
    sides = [
        Side("ours", prepare, run, lambda: [database.count(_TARGET)], left),
        _side(bench, "Debezium, counted", partial(_debezium, bench, changes, "")),
    ]
    return compare(sides, changes, bench.rounds)


def seconds_of(bench: Bench) -> float:
    """Return an estimate: Debezium starts in five seconds and reads 15,000 changes per second."""
    return 2 * (bench.rounds + 1) * (8 + bench.records / _SHARE / 12_000)


def _made(bench: Bench) -> int:
    """Create the changes, and the slot before them, once; return the number of changes."""
    wanted = bench.records // _SHARE // 10 * 10
    with psycopg.connect(bench.database.url, autocommit=True) as connection:
        known = connection.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", (_BASE,)).fetchone()
        if known is None:
            connection.execute(f"CREATE TABLE {_TABLE} ({_COLUMNS})")
            connection.execute(f"CREATE PUBLICATION {_BASE} FOR TABLE {_TABLE}")
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (_BASE,))
            for statement, part in _PARTS:
                count = round(wanted * part)
                for start in range(0, count, _TRANSACTION):
                    connection.execute(statement, (start, min(start + _TRANSACTION, count)))
    return wanted


def _side(bench: Bench, name: str, run: Callable[[], Taken], count: Callable[[], list[int]] | None = None) -> Side:
    changes = _made(bench)
    # a run that only counts fails itself if it finds another number
    return Side(name, partial(_prepare, bench), run, count or (lambda: [changes]), changes)


def _prepare(bench: Bench) -> None:
    shutil.rmtree(bench.work / "slots", ignore_errors=True)
    (bench.work / "slots").mkdir(parents=True)
    drop_slots(bench.database.url, "bench")
    with psycopg.connect(bench.database.url, autocommit=True) as connection:
        connection.execute("SELECT pg_copy_logical_replication_slot(%s, 'bench')", (_BASE,))


def _settings(url: str) -> dict[str, Any]:
    names = {"logrepl.slotName": "bench", "logrepl.publicationName": _BASE}
    return {"url": url, "tables": _TABLE, "snapshotMode": "never", **names}


def _taken(run: Callable[[], object]) -> Taken:
    before, began = cpu_seconds("postgres"), time.perf_counter()
    run()
    return Taken(time.perf_counter() - began, cpu_seconds("postgres") - before)


def _source_alone(bench: Bench, changes: int) -> Taken:
    found = [0]

    def read() -> None:
        found[0] = read_alone(_settings(bench.database.url), bench.work / "slots")

    taken = _taken(read)
    assert found == [changes], f"{found} changes, not {changes}"
    return taken


def _pipeline(bench: Bench, root: Path, destination: dict[str, Any]) -> Taken:
    shutil.rmtree(root, ignore_errors=True)
    source = {"id": "in", "type": "source", "plugin": "builtin:postgres", "settings": _settings(bench.database.url)}
    pipeline = {
        "id": "bench",
        "trigger": "available-now",
        "delivery": {"strategy": "exactly-once"},
        "connectors": [source, destination],
        "dead-letter-queue": {"plugin": "builtin:file", "settings": {"path": "./dead.jsonl"}},
    }
    write_pipeline(root, pipeline)
    return _taken(lambda: engine.drain(root, bench.spark))


def _debezium(bench: Bench, changes: int, output: str) -> Taken:
    """Measure from the first batch to the last, without the start of Java and of the connector, some five seconds."""
    more = {
        "snapshot.mode": "no_data",
        "publication.name": _BASE,
        "tombstones.on.delete": "false",
        "converter.schemas.enable": "false",
        "reader.output": output,
    }
    settings = {**properties(bench.database.url, "bench"), **more}
    folder = bench.work / "slots"
    ran = subprocess.run(
        command(folder, settings, str(changes), options=_HEAP), capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2_000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    assert said["events"] == changes, said
    return Taken(said["wall"], said["cpu"])


def _conduit(bench: Bench, changes: int, binary: Path) -> Taken:
    """From its first record to its last, over its plugin protocol; the CPU is its own, without its reader's."""
    batches = {"sdk.batch.size": "1000", "sdk.batch.delay": "50ms"}
    settings = {**_settings(bench.database.url), **PLAIN_RECORDS, **batches, "logrepl.autoCleanup": "false"}
    with ConduitConnector(binary, bench.work / "slots", settings) as connector:
        connector.take(1)
        before, began = cpu_seconds_of(connector.pid), time.perf_counter()
        connector.take(changes - 1)
        return Taken(time.perf_counter() - began, cpu_seconds_of(connector.pid) - before)


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)
