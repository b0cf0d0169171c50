"""The page ``docs/connectors/postgres.md`` as written: its permissions, its pipeline, its slot query."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Any

import psycopg
import pytest
from lab.modules import ROOT
from lab.postgres_server import PostgresServer
from lab.support import Lab, destination, queue
from pyspark.sql import SparkSession
from ruamel.yaml import YAML

from conduit_dagster.cli.main import main
from conduit_dagster.recovery.codes import FATAL_NAMES, TRANSIENT_NAMES

PAGE = (ROOT / "docs" / "connectors" / "postgres.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.slow
TABLES = (
    "CREATE TABLE customers (id int PRIMARY KEY, name text); CREATE TABLE orders (id int PRIMARY KEY, total numeric)"
)
ROWS = """
    INSERT INTO customers SELECT i, 'c' || i FROM generate_series(1, 50) i;
    INSERT INTO orders SELECT i, i * 1.5 FROM generate_series(1, 50) i
"""
CHANGES = (
    "UPDATE customers SET name = 'new' WHERE id = 3; DELETE FROM orders WHERE id < 9; INSERT INTO orders VALUES (99, 9)"
)


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def _rows(url: str, table: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute(f"SELECT * FROM {table} ORDER BY id".encode()).fetchall()


def test_the_page_does_what_it_says(
    tmp_path: Path, spark: SparkSession, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, warehouse = postgres_server.create_database(), postgres_server.create_database()
    lab = Lab(tmp_path, spark)
    [pipeline, _], [server, database, look, opened, drop] = _blocks("yaml"), _blocks("sql")
    role, _, _ = server.partition("\n")
    address = shop.partition("@")[2]
    monkeypatch.setenv("SHOP_URL", f"postgresql://conduit_reader:change-me@{address}")
    monkeypatch.setenv("WAREHOUSE_URL", warehouse)
    (lab.root / "pipelines").mkdir()
    (lab.root / "pipelines" / "shop.yaml").write_text(pipeline, encoding="utf-8")
    with psycopg.connect(shop, autocommit=True) as origin, psycopg.connect(warehouse, autocommit=True) as copy:
        copy.execute(TABLES.encode())
        origin.execute(f"{TABLES}; {ROWS}".encode())
        # the tests' own superuser has the page's name
        for statement in f"{role}\n{database}".replace("conduit", "conduit_reader").split(";"):
            origin.execute(statement.encode())
        try:
            monkeypatch.chdir(lab.root)
            assert main(["doctor", "pipelines/shop.yaml"]) == 0
            assert lab.run("shop").error is None
            origin.execute(CHANGES.encode())
            assert lab.run("shop").error is None
            for table in ("customers", "orders"):
                assert _rows(warehouse, table) == _rows(shop, table)
            assert [row[:3] for row in origin.execute(look.encode())] == [("shop", None, "reserved")]
            assert lab.letters() == []
            copy.execute("BEGIN; SELECT pg_current_xact_id()")
            transactions, prepared, _ = opened.split(";")
            assert copy.info.backend_pid in [row[0] for row in origin.execute(transactions.encode())]
            assert origin.execute(prepared.encode()).fetchall() == []
            copy.execute("ROLLBACK")
        finally:
            for statement in drop.split(";"):
                origin.execute(statement.encode())
            origin.execute("DROP OWNED BY conduit_reader; DROP ROLE conduit_reader")


def test_what_it_polls_needs_the_right_to_read_alone(
    tmp_path: Path, spark: SparkSession, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = postgres_server.create_database()
    lab = Lab(tmp_path, spark)
    user, settings = f"poller_{secrets.token_hex(4)}", YAML(typ="safe").load(_blocks("yaml")[1])["settings"]
    monkeypatch.setenv("SHOP_URL", f"postgresql://{user}:change-me@{shop.partition('@')[2]}")
    lab.pipeline(
        connectors=[{"id": "in", "type": "source", "plugin": "builtin:postgres", "settings": settings}, destination()],
        **{"dead-letter-queue": queue(0)},
    )
    with psycopg.connect(shop, autocommit=True) as origin:
        origin.execute("CREATE TABLE orders (id int PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT now())")
        origin.execute("INSERT INTO orders VALUES (1), (2)")
        origin.execute(
            f"CREATE ROLE {user} LOGIN PASSWORD 'change-me'; GRANT USAGE ON SCHEMA public TO {user}".encode()
        )
        origin.execute(f"GRANT SELECT ON orders TO {user}".encode())
        try:
            assert lab.run().error is None
            origin.execute("UPDATE orders SET updated_at = now() WHERE id = 1")
            assert lab.run().error is None
        finally:
            origin.execute(f"DROP OWNED BY {user}; DROP ROLE {user}".encode())
    assert [row["id"] for row in lab.documents("out.jsonl")] == [1, 2, 1]


def test_every_code_of_the_table_is_one() -> None:
    codes = re.findall(r"`(postgres\.[a-z_]+)`", PAGE.partition("## Troubleshooting")[2])
    assert len(codes) > 10 and set(codes) <= FATAL_NAMES | TRANSIENT_NAMES
