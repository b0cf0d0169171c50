"""The page ``docs/connectors/kafka.md``: its pipeline runs, and its permissions are sufficient."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.kafka_lab import KafkaLab, numbered
from lab.kafka_listeners import with_login
from lab.kafka_rights import AUTHORIZER, grant
from lab.kafka_server import KafkaServer, running_kafka
from lab.support import Lab
from lab.tutorial import pipeline_of
from pyspark.sql import SparkSession

from conduit_dagster.recovery.errors import FatalError

PAGE = (Path(__file__).parents[3] / "docs" / "connectors" / "kafka.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.slow


def test_the_pipeline_of_the_page(
    tmp_path: Path, spark: SparkSession, kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own topics."""
    own, lab = secrets.token_hex(4), Lab(tmp_path, spark)
    names = {name: kafka_server.topic(name=f"{name}-{own}") for name in ("orders", "paid-orders", "dead-orders")}
    text = (
        pipeline_of(PAGE, "paid")
        .replace("topics: orders", f"topics: {names['orders']}")
        .replace("id: paid\n", f"id: paid{own}\n")
    )
    for name in ("paid-orders", "dead-orders"):
        text = text.replace(f"topic: {name}", f"topic: {names[name]}")
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "paid.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("KAFKA_SERVERS", kafka_server.servers)
    lab.env["KAFKA_SERVERS"] = kafka_server.servers
    rows = [b'{"id": 1, "paid": true}', b'{"id": 2, "paid": false}', b"no json", b'{"id": 3, "paid": true}']
    kafka_server.send(names["orders"], [(b"k", row) for row in rows])
    assert lab.run(f"paid{own}").error is None
    assert [value["id"] for value in kafka_server.values(names["paid-orders"])] == [1, 3]
    assert len(kafka_server.read(names["dead-orders"])) == 1


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaServer]:
    """A broker with ACLs, whose user conduit has no permissions yet."""
    with running_kafka(AUTHORIZER, [with_login("LOGIN", "conduit", "open-sesame-7")]) as server:
        yield server


def test_the_permissions_of_the_page_are_enough_and_needed(guarded: KafkaServer, tmp_path: Path) -> None:
    lab = KafkaLab(guarded, tmp_path)
    guarded.topic(name="orders")
    guarded.send("orders", [(None, b"%d" % i) for i in range(5)])
    login: dict[str, Any] = {
        "servers": guarded.at("LOGIN"), "saslMechanism": "PLAIN", "saslUsername": "conduit",
        "saslPassword": "open-sesame-7",
    }  # fmt: skip
    source = lab.source("orders", **login)
    settings = {**login, "transactional-id": "conduit-p-out"}
    destination = lab.destination("paid-orders", **settings)
    for call in (source.horizon, destination.check, lambda: destination.fence(1)):
        with pytest.raises(FatalError) as error:
            call()
        assert error.value.code in ("kafka.no_right", "kafka.no_topic")
    for command in re.findall(r"^kafka-acls\.sh .*--add .*$", PAGE, re.MULTILINE):
        grant(guarded, command)
    assert lab.values(source, source.initial()) == [b"0", b"1", b"2", b"3", b"4"]
    destination = lab.destination("paid-orders", **settings)
    destination.check()
    destination.fence(1)
    delivery = lab.stage(destination, numbered(5))
    destination.publish(delivery)
    assert [json.loads(m.value() or b"")["i"] for m in guarded.read("paid-orders")] == list(range(5))
    other = lab.destination("other-topic", **settings)
    with pytest.raises(FatalError) as error:
        other.publish(lab.stage(other, numbered(5)))
    assert error.value.code == "kafka.no_right" and "kafka-acls.sh" in (error.value.fix or "")
