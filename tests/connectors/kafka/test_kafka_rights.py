"""Rights that are missing: each is one error whose command grants it, or a nack of the records that name the topic."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from lab.kafka_lab import ALL, BY_COLLECTION, KafkaLab, numbered
from lab.kafka_listeners import with_login
from lab.kafka_rights import AUTHORIZER, grant, revoke_all
from lab.kafka_server import KafkaServer, running_kafka
from lab.waiting import wait_until
from structlog.testing import capture_logs

from conduit_dagster.connectors.kafka.message_sender import SendFailures
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import Rejected

pytestmark = pytest.mark.slow
ACLS = "kafka-acls.sh --add --allow-principal User:alice"
LOST = "Local: Fatal error"
"""What is left where the client loses the cause of its fatal error: see the end of this file."""


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    with running_kafka(AUTHORIZER, [with_login("LOGIN", "alice", "open-sesame-7")]) as server:
        yield server


@pytest.fixture
def guarded(broker: KafkaServer, tmp_path: Path) -> KafkaLab:
    """A lab on a broker whose user alice has no rights."""
    revoke_all(broker)
    return KafkaLab(broker, tmp_path)


def login(lab: KafkaLab, **more: str) -> dict[str, Any]:
    return {
        "servers": lab.server.at("LOGIN"), "saslMechanism": "PLAIN", "saslUsername": "alice",
        "saslPassword": "open-sesame-7", **more,
    }  # fmt: skip


def until_granted(lab: KafkaLab, action: Callable[[], Any]) -> Any:
    """Do what errors say until an action succeeds. Each command is typed once; a broker may learn of it a bit later."""
    typed, results, refusals = set[str](), list[Any](), list[str]()

    def succeeds() -> bool:
        try:
            results.append(action())
        except FatalError as error:
            assert error.code == "kafka.no_right" and error.fix, error
            refusals.append(f"{error}: {error.fix}")
            if error.fix not in typed:
                typed.add(error.fix)
                grant(lab.server, error.fix)
            return False
        except TransientError as error:
            assert LOST in str(error), error
            return False
        return True

    wait_until(succeeds, "the commands help", 30, said=lambda: refusals[-1])
    return results[0]


def names() -> tuple[str, str]:
    """A topic, and one for the deliveries."""
    own = secrets.token_hex(4)
    return f"out-{own}", f"deliveries-{own}"


@pytest.mark.parametrize("strategy", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("identity", ["conduit-p/out", "mine"])
def test_what_errors_say_to_type_is_enough_to_write(strategy: str, identity: str, guarded: KafkaLab) -> None:
    out, deliveries = names()
    more = {"deliveries-topic": deliveries, "transactional-id": identity}

    def deliver() -> None:
        destination = guarded.destination(out, strategy=strategy, **login(guarded, **more))
        destination.fence(1)
        guarded.deliver(destination, numbered(5))
        destination.close()

    until_granted(guarded, deliver)
    assert [json.loads(m.value() or b"")["i"] for m in guarded.server.read(out)] == list(range(5))


@pytest.mark.parametrize("right", ["Read", "Write", "DescribeConfigs"])
def test_a_single_right_to_the_topic_of_deliveries(right: str, guarded: KafkaLab) -> None:
    out, deliveries = (guarded.server.topic(name=name, cleanup_policy="compact") for name in names())
    grant(guarded.server, f"{ACLS} --topic {out} --operation Write")
    grant(guarded.server, f"{ACLS} --transactional-id conduit-p/out --operation Write")
    guarded.server.send(deliveries, [(b"conduit-q/out/floor", None)])  # an empty topic is not read
    others = {"Read", "Write", "DescribeConfigs", "Describe"} - {right}
    grant(guarded.server, f"{ACLS} --topic {deliveries} " + " ".join(f"--operation {one}" for one in others))
    more = {"deliveries-topic": deliveries, "transactional-id": "conduit-p/out"}
    destination = guarded.destination(out, **login(guarded, **more))
    with pytest.raises(FatalError) as error:
        guarded.deliver(destination, numbered(5))
    assert error.value.code == "kafka.no_right" and str(error.value.place).endswith(deliveries)
    assert f"--allow-principal User:alice --topic {deliveries} " in (error.value.fix or "")
    assert f"--operation {right}" in (error.value.fix or "").split("--topic")[1]


@pytest.mark.parametrize("strategy", ["exactly-once", "at-least-once"])
def test_a_destination_that_is_checked_says_what_is_missing(strategy: str, guarded: KafkaLab) -> None:
    """``doctor`` does, and each run before it reads; but for the transactional id, whose owner would be fenced."""
    out, deliveries = names()
    more = {"deliveries-topic": deliveries, "transactional-id": "conduit-p/out"}
    guarded.server.topic(name=out)

    def checked() -> None:
        destination = guarded.destination(out, strategy=strategy, **login(guarded, **more))
        destination.check()
        destination.close()

    until_granted(guarded, checked)
    if strategy == "exactly-once":
        grant(guarded.server, f"{ACLS} --transactional-id conduit-p/out --operation Write")
    destination = guarded.destination(out, strategy=strategy, **login(guarded, **more))
    guarded.deliver(destination, numbered(5))
    destination.close()


def test_a_source_that_is_checked_says_that_it_may_not_read(guarded: KafkaLab) -> None:
    topic = guarded.server.topic()
    grant(guarded.server, f"{ACLS} --topic {topic} --operation Describe")
    source = guarded.source(topic, **login(guarded))
    with pytest.raises(FatalError) as error:
        source.check()
    assert error.value.code == "kafka.no_right" and f"--topic {topic} --operation Read" in (error.value.fix or "")
    until_granted(guarded, source.check)
    source.close()


def test_a_topic_of_a_pattern_whose_rights_are_revoked_is_not_said_to_be_deleted(guarded: KafkaLab) -> None:
    """Brokers leave it out of their list of topics. What comes meanwhile is read once it may be."""
    prefix = f"orders-{secrets.token_hex(4)}"
    topics = [guarded.server.topic(name=f"{prefix}-{number}") for number in range(2)]
    for topic in topics:
        grant(guarded.server, f"{ACLS} --topic {topic} --operation Read --operation Describe")
        guarded.server.send(topic, [(b"k", b"1")])
    source = guarded.source(f"^{prefix}-.*", **login(guarded))
    position, records = until_granted(guarded, lambda: guarded.step(source, source.initial()))
    assert len(records) == 2
    revoke_all(guarded.server)
    grant(guarded.server, f"{ACLS} --topic {topics[0]} --operation Read --operation Describe")
    guarded.server.send(topics[1], [(b"k", b"2")])
    refused: list[FatalError] = []

    def is_refused() -> bool:
        try:
            source.latest(position, ALL)
        except FatalError as error:
            refused.append(error)
        return bool(refused)

    wait_until(is_refused, "the broker knows of the revocation")
    assert refused[0].code == "kafka.no_right" and f"--topic {topics[1]} " in (refused[0].fix or "")
    position, records = until_granted(guarded, lambda: guarded.step(source, position))
    assert [record.after for record in records] == [b"2"]
    source.close()


@pytest.mark.parametrize("strategy", ["exactly-once", "at-least-once", "at-most-once"])
def test_a_topic_that_may_not_be_written_is_named(strategy: str, guarded: KafkaLab) -> None:
    """Brokers refuse all topics of a transaction at once; an idempotent producer, without a word of any topic."""
    out, deliveries = guarded.server.topic(), names()[1]
    grant(guarded.server, f"{ACLS} --topic {out} --operation Describe")
    grant(guarded.server, f"{ACLS} --topic {deliveries} --operation Read --operation Write --operation Create")
    grant(guarded.server, f"{ACLS} --topic {deliveries} --operation DescribeConfigs")
    grant(guarded.server, f"{ACLS} --transactional-id conduit-p/out --operation Write")
    if strategy != "exactly-once":
        revoke_all(guarded.server)
        grant(guarded.server, f"{ACLS} --topic {out} --operation Describe")
    more = {"deliveries-topic": deliveries, "transactional-id": "conduit-p/out"}
    destination = guarded.destination(out, strategy=strategy, **login(guarded, **more))
    error = _refusal(guarded, destination)
    assert error.code == "kafka.no_right" and str(error.place).endswith(out)
    assert f"--topic {out} --operation Write" in (error.fix or "")


def _refusal(lab: KafkaLab, destination: Any) -> FatalError:
    """Return the error of a delivery. Where the client loses its cause, try again."""
    for _ in range(5):
        with pytest.raises((FatalError, TransientError)) as error:
            lab.deliver(destination, numbered(5))
        if isinstance(error.value, FatalError):
            return error.value
        assert LOST in str(error.value)
    raise AssertionError("the client lost the cause five times")


@pytest.mark.parametrize("strategy", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("right", ["", "Describe"])
def test_records_that_name_a_topic_without_rights_are_refused(strategy: str, right: str, guarded: KafkaLab) -> None:
    """The others are delivered."""
    open_, closed, deliveries = guarded.server.topic(), guarded.server.topic(), names()[1]
    operations = "--operation Read --operation Write --operation Create --operation DescribeConfigs"
    grant(guarded.server, f"{ACLS} --topic {deliveries} {operations}")
    grant(guarded.server, f"{ACLS} --topic {open_} --operation Write")
    grant(guarded.server, f"{ACLS} --transactional-id conduit-p/out --operation Write")
    if right:
        grant(guarded.server, f"{ACLS} --topic {closed} --operation {right}")
    more = {"deliveries-topic": deliveries, "transactional-id": "conduit-p/out"}
    destination = guarded.destination(BY_COLLECTION, strategy=strategy, **login(guarded, **more))
    records = numbered(6)
    for number, record in enumerate(records):
        record.metadata["opencdc.collection"] = closed if number % 3 == 1 else open_
    with pytest.raises(Rejected) as error:
        guarded.deliver(destination, records)
    refused = [(error.value.place, error.value.nack), *error.value.more]
    assert [place for place, _ in refused] == [1, 4]
    assert {nack.code for _, nack in refused} == {"kafka.no_right"} and closed in error.value.nack.message
    guarded.deliver(destination, [record for number, record in enumerate(records) if number % 3 != 1])
    assert {json.loads(m.value() or b"")["i"] for m in guarded.server.read(open_)} == {0, 2, 3, 5}


def test_what_errors_say_to_type_is_enough_to_read(guarded: KafkaLab) -> None:
    """And the warning about the group's offsets, which stop no run."""
    topic = guarded.server.topic()
    guarded.server.send(topic, [(b"k", b"1")])

    def read() -> list[Any]:
        source = guarded.source(topic, **login(guarded), commit_offsets="true")
        position, records = guarded.step(source, source.initial())
        with capture_logs() as lines:
            source.ack(position, 1)
            source.close()
        return [len(records), *(line["error"] for line in lines)]

    count, warning = until_granted(guarded, read)
    grant(guarded.server, warning[warning.index("kafka-acls.sh") :])
    assert (count, read()) == (1, [1])


class _Busy(SendFailures):
    """Handles an error of its own while the client's is set, which is lost then."""

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        try:  # a call would be told that an error is set
            {}["none"]
        except KeyError:
            pass
        super().__call__(error, message)


def test_an_error_that_the_client_loses_is_an_outage(guarded: KafkaLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sets its fatal error, then reports messages, and its call ends with a ``SystemError`` of the interpreter."""
    monkeypatch.setattr("conduit_dagster.connectors.kafka.message_sender.SendFailures", _Busy)
    out, _ = names()
    guarded.server.topic(name=out)
    grant(guarded.server, f"{ACLS} --topic {out} --operation Describe")
    destination = guarded.destination(out, strategy="at-least-once", **login(guarded))
    with pytest.raises(TransientError) as error:
        guarded.deliver(destination, numbered(5))
    assert error.value.code == "kafka.server"
