"""Topics into PostgreSQL, by the pipelines of the pages: what Debezium wrote, and a compacted topic.

Debezium's embedded engine reads a random history of tables; its events are written to topics as Kafka Connect does,
with the schemas in each message and without.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Sequence
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
from lab.tutorial import pipeline_of
from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
_DOCS = Path(__file__).parents[3] / "docs"
PAGE = (_DOCS / "from-kafka-connect.md").read_text(encoding="utf-8")
KAFKA_PAGE = (_DOCS / "connectors" / "kafka.md").read_text(encoding="utf-8")
SETTINGS = dict(re.findall(r"^    ([a-z.]+)=(.*)$", PAGE, re.MULTILINE))
"""What the page sets in Debezium."""
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


Ran = Callable[[str, str, str], None]


@pytest.fixture
def ran(kafka_server: KafkaServer, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Runs the pipeline of a name and a text into a database, without a nack."""

    def run(name: str, text: str, database: str) -> None:
        monkeypatch.setenv("KAFKA_SERVERS", kafka_server.servers)
        monkeypatch.setenv("DATABASE_URL", database)
        (tmp_path / "pipelines").mkdir(exist_ok=True)
        (tmp_path / "pipelines" / f"{name}.yaml").write_text(text, encoding="utf-8")
        result = Lab(tmp_path, spark).run(name)
        assert result.error is None and not result.progress.nacked, result

    return run


@pytest.mark.parametrize("with_schemas", [True, False], ids=["schemas", "plain"])
def test_the_tables_are_the_same(
    with_schemas: bool, postgres_server: PostgresServer, kafka_server: KafkaServer, tmp_path: Path, ran: Ran
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
    ran("shop", pipeline_of(PAGE, "shop").replace("^shop[.].*", topic), target)
    names = [table.name for table in history.tables]
    assert rows(target, names) == rows(origin, names)


def test_a_compacted_topic_is_a_table(postgres_server: PostgresServer, kafka_server: KafkaServer, ran: Ran) -> None:
    url, topic = postgres_server.create_database(), kafka_server.topic(2, **{"cleanup.policy": "compact"})
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
    text = pipeline_of(KAFKA_PAGE, "users").replace("topics: users", f"topics: {topic}")
    kafka_server.send(topic, [(b"%d" % i, b'{"id": %d, "name": "n%d"}' % (i, i)) for i in range(6)])
    kafka_server.send(topic, [(b"2", b'{"id": 2, "name": "two"}'), (b"3", None), (b"77", None)])
    ran("users", text, url)
    assert rows(url, ["users"]) == {"users": ["(0,n0)", "(1,n1)", "(2,two)", "(4,n4)", "(5,n5)"]}
    kafka_server.send(topic, [(b"3", b'{"id": 3, "name": "again"}'), (b"0", None)])
    ran("users", text, url)
    assert rows(url, ["users"]) == {"users": ["(1,n1)", "(2,two)", "(3,again)", "(4,n4)", "(5,n5)"]}
