"""A topic of deliveries that is lost while a step is prepared: nothing says whether the step was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AlterConfigOpType,  # pyright: ignore[reportPrivateImportUsage]
    ConfigEntry,  # pyright: ignore[reportPrivateImportUsage]
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)
from lab.kafka_lab import KafkaLab, numbered
from lab.kafka_server import KafkaServer
from lab.kills import crashing
from lab.support import Lab, processor
from lab.waiting import wait_until
from pyspark.sql import SparkSession

from conduit_dagster.engine.operate.mark import mark
from conduit_dagster.engine.operate.pipeline_lock import owned
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.claim import open_store

pytestmark = pytest.mark.slow


def _empty(server: KafkaServer, topic: str) -> None:
    """Remove what a topic has, as retention does while its policy is another one for a while."""
    for policy in ("delete", "compact"):
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        server.admin.incremental_alter_configs([resource])[resource].result(60)
        if policy == "delete":
            server.delete_before(topic, 0, -1)


_LOSSES: dict[str, Callable[[KafkaServer, str], None]] = {
    "deleted": lambda server, topic: server.delete(topic),
    "emptied": _empty,
}


@pytest.mark.parametrize("loss", _LOSSES)
def test_a_step_whose_hash_may_be_lost_is_not_taken_for_unwritten(lab: KafkaLab, loss: str) -> None:
    more = {"deliveries-topic": lab.server.topic(cleanup_policy="compact")}
    topic = lab.server.topic()
    first = lab.destination(topic, **more)
    delivery = replace(lab.stage(first, numbered(3)), target=first.target(None))
    first.publish(delivery)
    assert lab.destination(topic, **more).holds(delivery)
    first.close()
    _LOSSES[loss](lab.server, more["deliveries-topic"])
    second = lab.destination(topic, **more)
    second.fence(2)
    with pytest.raises(FatalError) as error:
        second.holds(delivery)
    assert error.value.code == "kafka.deliveries_gone" and more["deliveries-topic"] in error.value.message
    third = lab.destination(topic, **{**more, "on-deliveries-gone": "resend"})
    assert not third.holds(delivery)
    target = third.retarget(delivery)
    assert target is not None
    # stored with the step, before it is written again
    stored = replace(delivery, target=target)
    assert not second.holds(stored) and third.retarget(stored) is None


def test_messages_that_compaction_removes_are_not_missed(lab: KafkaLab) -> None:
    """They were replaced by later ones; the earliest offset stays."""
    quick = {"segment_ms": "100", "min_cleanable_dirty_ratio": "0.01", "delete_retention_ms": "0"}
    deliveries = lab.server.topic(cleanup_policy="compact", **quick)
    destination = lab.destination(lab.server.topic(), deliveries_topic=deliveries)
    before = destination.target(None)
    key = b"another/floor"

    def is_compacted() -> bool:
        lab.server.send(deliveries, [(key, b"{}")] * 3)
        found = [message.offset() for message in lab.server.read(deliveries)]
        return found[0] != 0

    wait_until(is_compacted, "the first messages are compacted away")
    again = lab.destination(lab.server.topic(), deliveries_topic=deliveries)
    assert again.target(None) == before


class _Pipe:
    """A pipeline from one topic to another, exactly once."""

    def __init__(self, lab: Lab, server: KafkaServer) -> None:
        self.lab, self.server = lab, server
        self.source, self.target = server.topic(), server.topic()
        self.deliveries = server.topic(cleanup_policy="compact")
        server.send(self.source, [(None, b'{"i": %d}' % i) for i in range(10)])

    def write(self, **more: str) -> None:
        common: dict[str, Any] = {"servers": self.server.servers}
        out = {"topic": self.target, "sdk.record.format": "payload/json", "transactional-id": self.target}
        out |= {"deliveries-topic": self.deliveries, **more}
        read = {"topics": self.source, "readFromBeginning": "true"}
        self.lab.pipeline(
            connectors=[
                {"id": "in", "type": "source", "plugin": "kafka", "settings": {**common, **read}},
                {"id": "out", "type": "destination", "plugin": "kafka", "settings": {**common, **out}},
            ],
            processors=[processor("decode", "json.decode", field=".Payload.After")],
            delivery={"strategy": "exactly-once"},
        )


@pytest.mark.parametrize("is_written", [True, False])
def test_both_ways_on(lab_of_pipelines: Lab, kafka_server: KafkaServer, spark: SparkSession, is_written: bool) -> None:
    """As the error says: look at the destination, and mark the step's records or have them sent again."""
    pipe = _Pipe(lab_of_pipelines, kafka_server)
    pipe.write()
    with crashing("after-publish" if is_written else "before-publish"):
        pipe.lab.run()
    kafka_server.delete(pipe.deliveries)
    error = pipe.lab.run().error
    assert error is not None and error.code == "kafka.deliveries_gone" and error.fatal
    assert len(kafka_server.read(pipe.target)) == (10 if is_written else 0)
    pipe.write(**{"on-deliveries-gone": "resend"})
    if is_written:
        _mark(pipe.lab, spark)
    assert pipe.lab.run().error is None
    assert [one["i"] for one in kafka_server.values(pipe.target)] == list(range(10))


def _mark(lab: Lab, spark: SparkSession) -> None:
    """Do what ``offsets mark p out 9`` does."""
    bound, project = lab.catalogue().get("p"), lab.catalogue().project
    assert bound is not None
    database = open_store(project.state_url, project.home)
    try:
        with owned(bound, database, RunOptions(project.staging_url, log=project.log_url), lambda: spark, "me") as lock:
            assert mark(lock, "out", 9)["did"] == "marked"
    finally:
        database.dispose()


@pytest.fixture
def lab_of_pipelines(tmp_path: Path, spark: SparkSession) -> Lab:
    return Lab(tmp_path, spark)
