"""Records refused at publishing: the time of a run that turns all of them into dead letters."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import engine
from benchmarks.bench import Bench
from benchmarks.setup import to_table, write_pipeline
from tests.engine.frozen import ledger_plugin

_TABLE = "refusing"


def refused(bench: Bench, root: Path, kind: str, count: int, every: int) -> dict[str, Any]:
    """Measure one run of one step in which every ``every``-th record, ``count`` in total, is refused.

    ``kind``: ledger or postgres. The ledger is a table of SQLite with hashes, which names all records that it refuses.
    """
    total = count * every
    with (root / "in.jsonl").open("w") as file:
        file.writelines(f'{{"i":{number}}}\n' for number in range(total))
    if kind == "ledger":
        (root / "plugins").mkdir()
        (root / "plugins" / "ledger.py").write_text(ledger_plugin.TEXT)
        (root / "orders.json").write_text(json.dumps({"named": list(range(0, total, every))}))
        output = ledger_plugin.ledger()
    else:
        _create(bench.database.url, every)
        output = to_table("out", bench.database.url)
        output["settings"]["table"] = _TABLE
    _write(root, output)
    seconds = engine.drain(root, bench.spark)
    assert sum(1 for _ in (root / "dead.jsonl").open()) == count
    assert _arrived(bench, root, kind) == total - count
    return {"destination": kind, "records": total, "refused": count, "seconds": round(seconds, 1)}


def _create(url: str, every: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS refusing")
        connection.execute(f"CREATE TABLE refusing (i bigint CHECK (i % {every} <> 0))".encode())


def _write(root: Path, output: dict[str, Any]) -> None:
    pipeline = {
        "id": "bench",
        "trigger": "available-now",
        "delivery": {"strategy": "exactly-once"},
        "connectors": [
            {"id": "in", "type": "source", "plugin": "builtin:file", "settings": {"path": "./in.jsonl"}},
            output,
        ],
        "processors": [{"id": "decode", "plugin": "json.decode", "settings": {"field": ".Payload.After"}}],
        "dead-letter-queue": {"plugin": "builtin:file", "settings": {"path": "./dead.jsonl"}, "window-size": 0},
    }
    write_pipeline(root, pipeline)


def _arrived(bench: Bench, root: Path, kind: str) -> int:
    if kind == "postgres":
        return bench.database.count(_TABLE)
    with closing(sqlite3.connect(root / "out.ledger")) as connection:
        return int(connection.execute("SELECT count(*) FROM rows").fetchone()[0])
