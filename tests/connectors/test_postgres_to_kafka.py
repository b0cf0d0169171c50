"""A Conduit file, from PostgreSQL's changes to Kafka, unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from lab.kafka_server import KafkaServer
from lab.postgres_server import PostgresServer
from lab.postgres_tables import drop_slots
from lab.support import Lab
from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
FILE = """
version: "2.2"
pipelines:
  - id: postgres-cdc-kafka
    status: running
    connectors:
      - id: pg
        type: source
        plugin: builtin:postgres
        settings:
          url: "${PG_URL}"
          tables: "users"
          snapshotMode: initial
          cdcMode: logrepl
          logrepl.publicationName: "kafkapub"
          logrepl.slotName: "kafkaslot"
          logrepl.autoCleanup: "true"
          logrepl.withAvroSchema: "true"
          snapshot.fetchSize: "50000"
          sdk.schema.extract.payload.enabled: "false"
      - id: kafka
        type: destination
        plugin: builtin:kafka
        settings:
          servers: "${KAFKA_SERVERS}"
          topic: "${KAFKA_TOPIC}"
          acks: all
          compression: snappy
          deliveryTimeout: 10s
          clientID: conduit-connector-kafka
"""


def test_a_file_of_conduits_runs_as_it_is(
    tmp_path: Path,
    spark: SparkSession,
    postgres_server: PostgresServer,
    kafka_server: KafkaServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, topic = postgres_server.create_database(), kafka_server.topic()
    for name, value in (("PG_URL", url), ("KAFKA_SERVERS", kafka_server.servers), ("KAFKA_TOPIC", topic)):
        monkeypatch.setenv(name, value)
    lab = Lab(tmp_path, spark)
    (lab.root / "pipelines").mkdir()
    (lab.root / "pipelines" / "template.yaml").write_text(FILE, encoding="utf-8")
    lab.env = {"PG_URL": url, "KAFKA_SERVERS": kafka_server.servers, "KAFKA_TOPIC": topic}
    findings = lab.catalogue().findings
    assert {(one.code, one.severity) for one in findings} == {("setting.idle", "warning")}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE users (id int PRIMARY KEY, name text); INSERT INTO users VALUES (1, 'Ana')")
        lab.run("postgres-cdc-kafka", drain=True)
        connection.execute("INSERT INTO users VALUES (2, 'Bo'); UPDATE users SET name = 'Cy' WHERE id = 1")
        connection.execute("DELETE FROM users WHERE id = 2")
        lab.run("postgres-cdc-kafka", drain=True)
    found = [
        (json.loads(message.key() or b"null"), json.loads(message.value() or b"null"))
        for message in kafka_server.read(topic)
    ]
    assert [(key, one["operation"], one["payload"]["after"]) for key, one in found] == [
        ({"id": 1}, "snapshot", {"id": 1, "name": "Ana"}),
        ({"id": 2}, "create", {"id": 2, "name": "Bo"}),
        ({"id": 1}, "update", {"id": 1, "name": "Cy"}),
        ({"id": 2}, "delete", None),
    ]
    assert {one["metadata"]["opencdc.collection"] for _, one in found} == {"users"}
    drop_slots(url)
