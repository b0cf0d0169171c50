"""Topics that Debezium wrote, into PostgreSQL with the pipeline of docs/from-kafka-connect.md: the same rows in both.

Debezium's embedded engine reads a random history of tables; its events are written to topics as Kafka Connect does,
with the schemas in each message and without.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from lab.debezium import Debezium, Event
from lab.kafka_server import KafkaServer
from lab.maven_jars import NoJarsError
from lab.postgres_history import PostgresHistory, Table, tables
from lab.postgres_server import PostgresServer
from lab.random_values import LITERALS
from lab.support import Lab
from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
PAGE = (Path(__file__).parents[3] / "docs" / "from-kafka-connect.md").read_text(encoding="utf-8")
SETTINGS = dict(re.findall(r"^    ([a-z.]+)=(.*)$", PAGE, re.MULTILINE))
"""What the page sets in Debezium."""
[PIPELINE] = re.findall(r"```yaml\n(version.*?id: shop\n.*?)```", PAGE, re.DOTALL)
_NAMES = ("public.large", "public.whole", "public.pair", 'other."T x"')
_TYPES = (
    "smallint", "bigint", "numeric", "numeric(12,3)", "real", "boolean", "text", "varchar(40)", "date", "time",
    "timestamp", "timestamptz", "interval", "uuid", "integer[]", "text[]",
)  # fmt: skip


def made_tables() -> list[Table]:
    """Tables whose columns stay; one has a column of each type, one large values that Debezium does not get."""
    kinds = {"data": "bytea", **{f"c{place}": kind for place, kind in enumerate(_TYPES)}}
    typed = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    literals = {name: LITERALS[kind] for name, kind in kinds.items()}
    found = [Table("public.kinds", f"(id bigint PRIMARY KEY, {typed})", literals)]
    found += [table for table in tables() if table.name in _NAMES]
    for table in found:
        table.is_changed, table.is_moved = False, table.name != "public.large"
    return found


@contextmanager
def debezium(url: str, folder: Path) -> Generator[Debezium]:
    """An engine on all tables; skip the test if it is not available."""
    try:
        engine = Debezium(url, folder, **SETTINGS, **{"topic.prefix": "shop", "poll.interval.ms": "20"})
    except NoJarsError as error:
        pytest.skip(f"no Debezium: {error}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE PUBLICATION {engine.name} FOR ALL TABLES".encode())
    with engine:
        yield engine


def is_mark(event: Event) -> bool:
    """Whether it is the last one wanted."""
    return event.value is not None and event.table == "public.marks"


def messages(events: Sequence[Event], with_schemas: bool) -> list[tuple[bytes | None, bytes | None]]:
    """What Kafka Connect's JSON converter writes."""

    def written(part: dict[str, Any] | None) -> bytes | None:
        return None if part is None else json.dumps(part if with_schemas else part["payload"]).encode()

    return [(written(event.key), written(event.value)) for event in events]


def rows(url: str, names: Sequence[str]) -> dict[str, list[str]]:
    """All rows as text, by table."""
    with psycopg.connect(url) as connection:
        connection.execute("SET extra_float_digits = 1")
        return {
            name: [row[0] for row in connection.execute(f"SELECT t::text FROM {name} t ORDER BY 1".encode())]
            for name in names
        }


@pytest.mark.parametrize("with_schemas", [True, False], ids=["schemas", "plain"])
def test_the_tables_are_the_same(
    with_schemas: bool,
    postgres_server: PostgresServer,
    kafka_server: KafkaServer,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    origin, target = postgres_server.create_database(), postgres_server.create_database()
    topic = kafka_server.topic()
    with PostgresHistory(target, 7, made_tables()) as empty:
        empty.create()
    with PostgresHistory(origin, 7, made_tables()) as history, psycopg.connect(origin, autocommit=True) as connection:
        history.create()
        history.run(60)
        connection.execute("CREATE TABLE marks (id int PRIMARY KEY); INSERT INTO marks VALUES (1)")
        with debezium(origin, tmp_path) as engine:
            events = engine.until(is_mark)
            history.run(400)
            connection.execute("INSERT INTO marks VALUES (2)")
            events += engine.until(is_mark)
    operations = {event.payload["op"] for event in events if event.value}
    assert operations >= {"r", "c", "u", "d", "t"}
    kafka_server.send(topic, messages([event for event in events if not is_mark(event)], with_schemas))
    lab = Lab(tmp_path, spark)
    for name, value in (("KAFKA_SERVERS", kafka_server.servers), ("DATABASE_URL", target)):
        monkeypatch.setenv(name, value)
    (lab.root / "pipelines").mkdir()
    (lab.root / "pipelines" / "shop.yaml").write_text(PIPELINE.replace("^shop[.].*", topic), encoding="utf-8")
    result = lab.run("shop")
    assert result.error is None and not result.progress.nacked, result
    names = [table.name for table in history.tables]
    assert rows(target, names) == rows(origin, names)
