"""What ``validate`` and ``doctor`` report on pipelines with Kafka, before anything is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lab.kafka_server import KafkaServer
from lab.support import Lab, destination, source
from pyspark.sql import SparkSession

from conduit_dagster.cli import checks
from conduit_dagster.cli.main import main
from conduit_dagster.recovery.errors import FatalError


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    (tmp_path / "conduit.yaml").write_text("log: {level: info}\n")
    return Lab(tmp_path)


def _kafka(settings: dict[str, str], kind: str = "source") -> dict[str, Any]:
    return {"id": f"k{kind}", "type": kind, "plugin": "builtin:kafka", "settings": settings}


def test_settings_that_mean_nothing_here_are_named(lab: Lab) -> None:
    """A file from Conduit is valid, and settings without effect are named."""
    settings = {
        "servers": "h:9092", "topics": "orders", "commitOffsetsSize": "1000", "retryGroupJoinErrors": "true",
        "sdk.batch.size": "100", "clientID": "mine",
    }  # fmt: skip
    lab.pipeline(connectors=[_kafka(settings), destination("out")])
    found = {(f.code, f.severity, f.path.rpartition("/")[2]) for f in lab.catalogue().findings}
    assert found == {
        ("setting.idle", "warning", "commitOffsetsSize"), ("setting.idle", "warning", "retryGroupJoinErrors"),
        ("setting.idle", "warning", "sdk.batch.size"),
    }  # fmt: skip


def test_exactly_once_needs_all_acks(lab: Lab) -> None:
    out = _kafka({"servers": "h:9092", "topic": "t", "acks": "one"}, "destination")
    lab.pipeline(connectors=[source("./in.jsonl"), out], delivery={"strategy": "exactly-once"})
    assert [f.severity for f in lab.catalogue().findings] == ["error"]


@pytest.mark.parametrize(
    ("topics", "topic", "strategy", "warned"),
    [
        ("orders", "orders", "at-least-once", "orders"),
        ("^o.*", "orders", "at-least-once", "orders"),
        ("^conduit-.*", "orders", "exactly-once", "conduit-deliveries"),
        ("^.*", "{{ .Metadata.t }}", "exactly-once", "conduit-deliveries"),
        ("^.*", "{{ .Metadata.t }}", "at-least-once", ""),
        ("^o.*", "paid-orders", "exactly-once", ""),
    ],
)
def test_a_source_that_reads_what_its_pipeline_writes_is_warned_of(
    lab: Lab, topics: str, topic: str, strategy: str, warned: str
) -> None:
    """Its records would come again without end; a pattern may also match the topic of deliveries."""
    into = _kafka({"servers": "g:9092, h:9092", "topic": topic}, "destination")
    reader = _kafka({"servers": "h:9092", "topics": topics})
    lab.pipeline(connectors=[reader, into], delivery={"strategy": strategy})
    found = [(one.code, one.severity, one.message.split()[2]) for one in lab.catalogue().findings]
    assert found == ([("source.own_output", "warning", warned)] if warned else [])


@pytest.mark.parametrize(("strategy", "servers", "refused"), [
    ("exactly-once", "h:9092", True), ("exactly-once", "g:9092", False), ("at-least-once", "h:9092", False),
])  # fmt: skip
def test_two_destinations_with_one_transactional_id_are_refused(
    lab: Lab, strategy: str, servers: str, refused: bool
) -> None:
    """Each would fence the other, in every run."""
    own = {"topic": "t", "transactional-id": "x"}
    first = _kafka({"servers": "h:9092", **own}, "destination")
    second = {**first, "id": "again", "settings": {"servers": servers, **own}}
    lab.pipeline(connectors=[source("./in.jsonl"), first, second], delivery={"strategy": strategy})
    found = lab.catalogue().findings
    assert [one.code for one in found] == (["destination.owned"] if refused else [])
    assert not refused or "transactional-id x at h:9092 is written by kdestination" in found[0].message
    assert not refused or "a transactional-id of its own" in (found[0].fix or "")


@pytest.mark.slow
def test_doctor_says_what_to_type(
    lab: Lab, kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing topic, on either side; then everything is fine."""
    monkeypatch.chdir(lab.root)
    monkeypatch.setattr(checks, "_spark", lambda project: checks.Check("spark", "ok", "not what is tested"))
    name, out = f"d-{kafka_server.topic()}", kafka_server.topic()
    read = {"servers": kafka_server.servers, "topics": name}
    write = {"servers": kafka_server.servers, "topic": out, "create-topics": "never"}
    lab.pipeline(connectors=[_kafka(read), _kafka(write, "destination")])

    def said() -> dict[str, Any]:
        main(["doctor", "--deep", "--json"])
        return {check["name"]: check for check in json.loads(capsys.readouterr().out)["result"]["checks"]}

    found = said()["sources"]
    assert (found["level"], found["message"]) == ("fail", f"p:ksource: there is no topic {name}")
    assert found["fix"] == f"kafka-topics.sh --bootstrap-server {kafka_server.servers} --create --topic {name}"
    kafka_server.topic(name=name)
    assert said()["sources"]["level"] == said()["destinations"]["level"] == "ok"
    kafka_server.delete(out)
    assert said()["destinations"]["message"] == f"p:kdestination: there is no topic {out}"


@pytest.mark.slow
def test_spark_says_which_package_its_own_kafka_needs(lab: Lab, spark: SparkSession) -> None:
    settings = {"kafka.bootstrap.servers": "h:9092", "subscribe": "t"}
    lab = Lab(lab.root, spark)
    lab.pipeline(
        connectors=[{"id": "in", "type": "source", "plugin": "spark:kafka", "settings": settings}, destination("out")]
    )
    result = lab.run()
    assert isinstance(result.error, FatalError) and result.error.code == "spark.no_data_source"
    assert f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}" in (result.error.fix or "")
    assert "use the connector kafka" in (result.error.fix or "")
