"""The kafka destination: what a message holds, and which records are refused."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from lab.kafka_lab import BY_COLLECTION, KafkaLab, child, numbered
from pydantic import ValidationError

from conduit_dagster.connectors.kafka.destination import BatchRefusedError, KafkaDestination
from conduit_dagster.connectors.kafka.settings import KafkaDestinationSettings
from conduit_dagster.record import Record
from conduit_dagster.sdk import Keys, Rejected

pytestmark = pytest.mark.slow


# -- what a message holds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["exactly-once", "at-least-once", "at-most-once"])
def test_payloads_and_keys(lab: KafkaLab, strategy: str) -> None:
    """Raw data unchanged, including line feeds; a document as JSON; no payload is a tombstone, no key is none."""
    topic = lab.server.topic()
    destination = lab.destination(topic, strategy=strategy)
    records = [
        Record(0, {}, b"raw\n\xff", b"\x00k"),
        Record(1, {}, {"a": 1}, {"id": 7}),
        Record(2, {}, None, b"gone", operation="delete"),
        Record(3, {}, b"", None),
    ]
    lab.deliver(destination, records)
    assert [(m.key(), m.value()) for m in lab.server.read(topic)] == [
        (b"\x00k", b"raw\n\xff"), (b'{"id":7}', b'{"a":1}'), (b"gone", None), (None, b""),
    ]  # fmt: skip


def test_the_record_as_conduit_writes_it(lab: KafkaLab) -> None:
    """The default format, with base64 for raw data."""
    topic = lab.server.topic()
    destination = lab.destination(topic, **{"sdk.record.format": "opencdc/json"})
    lab.deliver(destination, [Record(5, {"m": "x"}, {"text": "a\nb"}, b"k"), Record(6, {}, b"raw")])
    first, second = lab.server.values(topic)
    assert first == {
        "position": "NQ==", "operation": "create", "metadata": {"m": "x"}, "key": "aw==",
        "payload": {"before": None, "after": {"text": "a\nb"}},
    }  # fmt: skip
    assert second["payload"]["after"] == "cmF3"


def test_a_template_may_give_several_lines(lab: KafkaLab) -> None:
    topic = lab.server.topic()
    settings = {"sdk.record.format": "template", "sdk.record.format.options": "a\n{{ .Payload.After.i }}"}
    lab.deliver(lab.destination(topic, **settings), numbered(2))
    assert [m.value() for m in lab.server.read(topic)] == [b"a\n0", b"a\n1"]


def test_headers_pass_through_in_order_with_records_that_have_none(lab: KafkaLab) -> None:
    """Also one that is not text; the order of a key is the same in both ways of writing."""
    topic = lab.server.topic()
    plain, headed = {"x": "y"}, {"kafka.header.a": "1", "kafka.header.b.base64": "/w=="}
    records = [Record(i, headed if i in (2, 3) else plain, b"%d" % i, b"k") for i in range(6)]
    lab.deliver(lab.destination(topic), records)
    found = lab.server.read(topic)
    assert [m.value() for m in found] == [b"%d" % i for i in range(6)]
    assert [m.headers() for m in found][1:4] == [None, [("a", b"1"), ("b", b"\xff")], [("a", b"1"), ("b", b"\xff")]]
    other = lab.server.topic()
    lab.deliver(lab.destination(other, headers="none"), records)
    assert not any(m.headers() for m in lab.server.read(other))


def test_headers_from_kafka_to_kafka_are_the_same(lab: KafkaLab) -> None:
    """Also text under a name that looks like that of encoded bytes."""
    topic, other = lab.server.topic(), lab.server.topic()
    headers = [("a", b"x"), ("b", b"\xff"), ("sum.base64", b"hello"), ("c.base64", b"/w=="), ("d.base64", b"\xff")]
    lab.server.send(topic, [(b"k", b"v")], headers=headers)
    source = lab.source(topic)
    lab.deliver(lab.destination(other), lab.step(source, source.initial())[1])
    assert [m.headers() for m in lab.server.read(other)] == [headers]


def test_the_time_of_a_message(lab: KafkaLab) -> None:
    topic = lab.server.topic()
    records = [Record(0, {"opencdc.createdAt": "1600000000123456789"}, b"x"), Record(1, {}, b"y")]
    lab.deliver(lab.destination(topic, timestamp="createdAt"), records)
    first, second = lab.server.read(topic)
    assert first.timestamp()[1] == 1_600_000_000_123
    assert second.timestamp()[1] > 1_700_000_000_000


def test_keys_go_where_java_clients_send_them(lab: KafkaLab) -> None:
    """Murmur2: the partitions that Kafka's own producer takes for these keys; and in order within each."""
    topic = lab.server.topic(5)
    lab.deliver(lab.destination(topic), numbered(700))
    found = lab.server.read(topic)
    by_key: dict[bytes, list[Any]] = {}
    for message in found:
        by_key.setdefault(message.key() or b"", []).append(message)
    assert {key: mine[0].partition() for key, mine in by_key.items()} == {key: _java(key, 5) for key in by_key}
    for key, mine in by_key.items():
        assert len({message.partition() for message in mine}) == 1
        assert [json.loads(m.value())["i"] for m in mine] == list(range(int(key), 700, 7))


def _java(key: bytes, partitions: int) -> int:
    """``Utils.toPositive(Utils.murmur2(key)) % partitions``, as the protocol's clients agree on it."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    for i in range(0, len(key) // 4 * 4, 4):
        k = int.from_bytes(key[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = key[len(key) // 4 * 4 :]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return ((h ^ h >> 15) & 0x7FFFFFFF) % partitions


# -- sizes --------------------------------------------------------------------------------------------------------


def test_a_message_that_is_too_large_is_refused_while_it_is_staged(lab: KafkaLab) -> None:
    topic = lab.server.topic()
    destination = lab.destination(topic, batchBytes="2000")
    records = [Record(i, {}, b"x" * size, b"k" * 10) for i, size in enumerate((10, 1_995, 1_990, 10))]
    delivery = lab.stage(destination, records)
    assert [(one.place, one.nack.code) for one in lab.refused] == [(1, "kafka.too_large")]
    destination.publish(delivery)
    assert [len(m.value() or b"") for m in lab.server.read(topic)] == [10, 1_990, 10]


def test_the_largest_batch_bytes(lab: KafkaLab) -> None:
    topic = lab.server.topic()
    lab.deliver(lab.destination(topic, batchBytes="1000000000"), numbered(1))
    assert lab.server.values(topic) == [{"i": 0}]


@pytest.mark.parametrize("strategy", ["exactly-once", "at-least-once"])
def test_a_message_that_is_too_large_for_its_topic(lab: KafkaLab, strategy: str) -> None:
    """Brokers refuse the batch without naming the record: the delivery is sent in pieces, and one record is refused."""
    topic = lab.server.topic(max_message_bytes="3000")
    destination = lab.destination(topic, strategy=strategy, compression="none")
    delivery = lab.stage(destination, [Record(i, {}, b"x" * (9_000 if i == 1 else 10)) for i in range(3)])
    with pytest.raises(BatchRefusedError):
        destination.publish(delivery)
    assert destination.claim(delivery, "split") == "split"
    destination.publish(child(delivery, 0))
    with pytest.raises(Rejected) as refused:
        destination.publish(child(delivery, 1))
    assert (refused.value.place, refused.value.nack.code) == (0, "kafka.too_large")
    destination.publish(child(delivery, 2))
    if strategy == "exactly-once":
        assert [len(m.value() or b"") for m in lab.server.read(topic)] == [10, 10]


def test_small_messages_whose_batch_is_too_large_for_their_topic(lab: KafkaLab) -> None:
    """The error says what to set, and that is enough."""
    topic = lab.server.topic(max_message_bytes="20000")
    records = [Record(i, {}, os.urandom(size)) for i, size in enumerate([5_000] * 20 + [18_976])]
    destination = lab.destination(topic, compression="none")
    with pytest.raises(BatchRefusedError, match="set batchBytes to 1,024 less"):
        lab.deliver(destination, records)
    lab.deliver(lab.destination(topic, compression="none", batchBytes="18976"), records)
    assert (len(lab.server.read(topic)), lab.refused) == (21, [])


@pytest.mark.parametrize("metadata", [{}, {"kafka.header.h": "1"}])
def test_a_staged_message_is_refused_once_batch_bytes_is_lowered(lab: KafkaLab, metadata: dict[str, str]) -> None:
    topic = lab.server.topic()
    delivery = lab.stage(lab.destination(topic), [Record(i, metadata, b"x" * (9_000 if i else 10)) for i in range(2)])
    destination = lab.destination(topic, batchBytes="2000")
    with pytest.raises(BatchRefusedError):
        destination.publish(delivery)
    with pytest.raises(Rejected) as refused:
        destination.publish(child(delivery, 1))
    assert refused.value.nack.code == "kafka.too_large"


def test_a_message_without_a_key_for_a_compacted_topic_says_so(lab: KafkaLab) -> None:
    """Brokers say only that they failed to validate it."""
    destination = lab.destination(lab.server.topic(cleanup_policy="compact"))
    with pytest.raises(Rejected) as error:
        destination.publish(lab.stage(destination, [Record(1, {}, {"i": 1})]))
    assert error.value.nack.code == "kafka.invalid_record" and "without a key" in error.value.nack.message


def test_many_messages_with_little_room(lab: KafkaLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the client may hold at a time, by number and by bytes: none is lost, none overtakes another."""
    monkeypatch.setattr("conduit_dagster.connectors.kafka.message_sender._WAITING", 500)
    monkeypatch.setattr("conduit_dagster.connectors.kafka.message_sender._BYTES", 40_000)
    topic = lab.server.topic()
    destination = lab.destination(topic)
    destination.publish(lab.stage(destination, numbered(9_000), numbered(3_000), block=700))
    assert [value["i"] for value in lab.server.values(topic)] == [*range(9_000), *range(3_000)]


def test_a_staged_message_as_a_dead_letter(lab: KafkaLab) -> None:
    destination = lab.destination(BY_COLLECTION)
    records = [Record(i, {"opencdc.collection": "ab"[i % 2]}, b"%d" % i, b"k%d" % i) for i in range(10)]
    delivery = lab.stage(destination, records[:6], records[6:], block=4)
    for place in range(10):
        row = destination.staged_row(delivery, place)
        assert (row.after, row.key) == (b"%d" % place, b"k%d" % place)


def test_sources_may_leave_out_no_key() -> None:
    """A message's partition follows from its key, whatever it is."""
    assert KafkaDestination.reads_keys is Keys.ALL


def test_acks_decide_what_can_be_kept() -> None:
    assert "exactly-once" in KafkaDestination.strategies_with({})
    assert KafkaDestination.strategies_with({"acks": "one"}) == {"at-most-once"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"topic": "a b"}, "is not a topic's name"),
        ({"topic": "{{ .Nothing"}, "not closed"),
        ({"topic": "conduit-deliveries"}, "records can't go into deliveries-topic"),
        ({"deliveries-topic": ""}, "the name of the topic is empty"),
        ({"sdk.record.format": "xml"}, "unknown format"),
        ({"acks": "two"}, "all"),
        ({"linger": "2m"}, "linger must be shorter"),
        ({"deliveryTimeout": "1ms"}, "linger must be shorter"),
        ({"transaction-timeout": "10ms"}, "less than a second"),
        ({"linger": "16m", "deliveryTimeout": "1h", "transaction-timeout": "1h"}, "linger is longer than 15 minutes"),
        ({"transaction-timeout": "577h"}, "the duration is too long"),
        ({"timeout": "61m"}, "timeout is longer than an hour"),
    ],
)
def test_settings_that_can_not_be(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        KafkaDestinationSettings.model_validate({"servers": "h:9092", **settings})
