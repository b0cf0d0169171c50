"""The kafka source: which messages are read, and the errors for those that are gone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lab.kafka_batches import send_with_time
from lab.kafka_lab import ALL, ROWS, KafkaLab
from lab.kafka_server import running_kafka
from lab.waiting import wait_until
from pydantic import ValidationError

from conduit_dagster.connectors.kafka.kafka_cluster import Cluster, KnownTopic
from conduit_dagster.connectors.kafka.kafka_position import NO_ID
from conduit_dagster.connectors.kafka.settings import KafkaSourceSettings
from conduit_dagster.engine.operate.rewind import check_position
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import Limit

pytestmark = pytest.mark.slow


# -- records ------------------------------------------------------------------------------------------------------


def test_a_record_has_what_the_message_has(lab: KafkaLab) -> None:
    """A header that is not text is base64, without loss; the position names the message."""
    topic = lab.server.topic(2)
    lab.server.send(topic, [(b"\x00key", b"\xffvalue")], 1, headers=[("a", b"x"), ("b", b"\xff"), ("c", None)])
    lab.server.send(topic, [(None, None)], 1)
    source = lab.source(topic, offset_metadata="true")
    first, second = lab.step(source, source.initial())[1]
    assert (first.key, first.after, first.operation) == (b"\x00key", b"\xffvalue", "create")
    assert (first.position, second.position) == (f"{topic}/1/0", f"{topic}/1/1")
    created = first.metadata.pop("opencdc.createdAt")
    assert abs(int(created) / 1e9 - time.time()) < 600
    assert first.metadata == {
        "conduit.source.connector.id": "p:in", "opencdc.readAt": "7", "opencdc.collection": topic,
        "kafka.partition": "1", "kafka.offset": "0",
        "kafka.header.a": "x", "kafka.header.b.base64": "/w==", "kafka.header.c": "",
    }  # fmt: skip
    assert (second.key, second.after) == (None, None)


def test_a_header_that_is_repeated_is_its_last_one(lab: KafkaLab) -> None:
    """Also where one of them is text and the other is not, which have different keys in a record's metadata."""
    topic, copy = lab.server.topic(), lab.server.topic()
    repeated: list[tuple[str, bytes]] = [("a", b"1"), ("a", b"\xff"), ("a", b"3"), ("b", b"1"), ("b", b"\xff")]
    lab.server.send(topic, [(b"k", b"v")], headers=repeated)
    source = lab.source(topic)
    records = lab.step(source, source.initial())[1]
    found = {name: value for name, value in records[0].metadata.items() if name.startswith("kafka.header.")}
    assert found == {"kafka.header.a": "3", "kafka.header.b.base64": "/w=="}
    lab.deliver(lab.destination(copy), records)
    assert [message.headers() for message in lab.server.read(copy)] == [[("a", b"3"), ("b", b"\xff")]]


def test_a_message_without_a_time_has_none(lab: KafkaLab) -> None:
    """Some clients write -1, which is no moment before 1970; 0 is one."""
    topic = lab.server.topic(retention_ms="-1")  # by default, messages of 1970 are removed at once
    for time_ in (-1, 0, 1_500):
        send_with_time(lab.server.port, topic, b"x", time_)
    source = lab.source(topic)
    records = lab.step(source, source.initial())[1]
    assert [record.metadata.get("opencdc.createdAt") for record in records] == [None, "0", "1500000000"]


def test_a_message_of_more_than_100_megabytes(tmp_path: Path) -> None:
    """The client's own limit; the broker's is what counts."""
    size = 110_000_000
    limits = f"message.max.bytes={2 * size}\nsocket.request.max.bytes={2 * size}"
    with running_kafka(limits, heap="1g") as server:
        lab, topic = KafkaLab(server, tmp_path), server.topic(max_message_bytes=f"{2 * size}")
        destination = lab.destination(topic, strategy="at-least-once", batchBytes=f"{size + 1_000}", compression="none")
        lab.deliver(destination, [Record(1, {}, b"x" * size)])
        source = lab.source(topic, timeout="10s")
        assert [len(value or b"") for value in lab.values(source, source.initial())] == [size]


def test_only_committed_messages_are_read(lab: KafkaLab) -> None:
    """A step ends before an open transaction, and the end of an aborted one is not the end of the range."""
    topic = lab.server.topic()
    lab.server.transaction(topic, ROWS[:3])
    lab.server.transaction(topic, ROWS[3:6], commit=False)
    source = lab.source(topic)
    end, found = lab.step(source, source.initial())
    assert [record.after for record in found] == [b"0", b"1", b"2"]
    assert source.lag(end) == 0
    lab.server.send(topic, ROWS[6:7])
    assert lab.values(source, end) == [b"6"]


def test_a_range_that_holds_nothing_but_gaps_ends(lab: KafkaLab) -> None:
    """Aborted messages and markers alone, in the middle and at the end of the partition."""
    topic = lab.server.topic()
    for number in range(3):
        lab.server.transaction(topic, ROWS[:4], commit=number == 2)
    source = lab.source(topic)
    position, found = source.initial(), 0
    for _ in range(20):
        end, records = lab.step(source, position, 2)
        found += len(records)
        if end == position:
            break
        position = end
    assert (found, source.lag(position)) == (4, 0)


def test_a_compacted_topic_is_read_around_its_gaps(lab: KafkaLab) -> None:
    """A message that compaction removes between two reads of a range is replaced by a later one, never lost."""
    topic = lab.server.topic(
        cleanup_policy="compact", segment_bytes="1048576", segment_ms="100", min_cleanable_dirty_ratio="0.001",
        max_compaction_lag_ms="200",
    )  # fmt: skip
    source = lab.source(topic)
    for number in range(30):
        lab.server.send(topic, [(b"same", b"%d" % number), (b"k%d" % number, b"")])
    start = source.initial()
    end, before = lab.step(source, start)

    def is_compacted() -> bool:
        time.sleep(0.15)  # a segment is rolled by the first message after its time
        lab.server.send(topic, [(b"roll", b"")])
        return len(lab.read(source, start, end)) < len(before)

    wait_until(is_compacted, "the log is compacted")
    after = lab.read(source, start, end)
    others = [sorted(str(one.key) for one in records if one.key != b"same") for records in (before, after)]
    assert others[0] == others[1]
    source.verify(start, end)


# -- where to start -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "expected"), [("latest", [b"new"]), ("", [b"new"]), ("earliest", [b"old", b"new"])])
def test_where_it_starts(lab: KafkaLab, start: str, expected: list[bytes]) -> None:
    """Stored as a position at the first run: messages between that and the first step are read."""
    topic = lab.server.topic()
    lab.server.send(topic, [(None, b"old")])
    source = lab.source(topic, start_from=start)
    position = source.initial()
    lab.server.send(topic, [(None, b"new")])
    assert lab.values(source, position) == expected


def test_it_starts_at_a_time(lab: KafkaLab) -> None:
    topic, now = lab.server.topic(2), int(time.time())
    lab.server.send(topic, [(None, b"old")], 0, timestamp=(now - 7_200) * 1_000)
    lab.server.send(topic, [(None, b"new")], 0, timestamp=(now - 1_800) * 1_000)
    lab.server.send(topic, [(None, b"older")], 1, timestamp=(now - 7_200) * 1_000)
    moment = datetime.fromtimestamp(now - 3_600, UTC).isoformat()
    source = lab.source(topic, start_from=moment)
    assert lab.values(source, source.initial()) == [b"new"]


def test_reading_from_the_beginning_as_in_conduit() -> None:
    settings = {"servers": "h:9092", "topics": "t"}
    assert KafkaSourceSettings.model_validate(settings).start == "latest"
    assert KafkaSourceSettings.model_validate({**settings, "readFromBeginning": "true"}).start == "earliest"


# -- topics and partitions that change ----------------------------------------------------------------------------


def test_partitions_and_topics_that_come_later_are_read_from_their_beginning(lab: KafkaLab) -> None:
    """Also by a source that began with the latest messages: new ones were never seen."""
    prefix = lab.server.topic()
    source = lab.source(f"^{prefix}.*", start_from="latest")
    lab.server.send(prefix, ROWS[:1])
    position = source.latest(source.initial(), ALL)
    lab.server.grow(prefix, 3)
    other = lab.server.topic(name=f"{prefix}-b")
    lab.server.send(other, ROWS[1:2])
    lab.server.send(prefix, ROWS[2:3], 2)
    wait_until(lambda: source.lag(position) == 2, "the client sees the new partitions")
    end, found = lab.step(source, position)
    assert [record.after for record in found] == [b"2", b"1"]
    assert source.counts(end) == {"topics": 2, "partitions": 4}


def test_a_topic_made_anew_is_noticed(lab: KafkaLab) -> None:
    """The same name and even the same offsets: its id tells. The error names both ways to continue; skip takes one."""
    topic = lab.server.topic()
    lab.server.send(topic, ROWS[:3])
    source = lab.source(topic)
    start = source.initial()
    position = source.latest(start, ALL)
    lab.server.delete(topic)
    wait_until(lambda: _made(lab, topic), "the name is free again")
    lab.server.send(topic, ROWS[3:8])
    for call in (lambda: source.latest(position, ALL), lambda: source.verify(start, position)):
        with pytest.raises(FatalError, match="recreated") as error:
            call()
        assert error.value.code == "kafka.topic_changed"
        fix = error.value.fix or ""
        assert "positions rewind" in fix and "on-gone: skip" in fix and "retention" not in fix
    skipping = lab.source(topic, on_gone="skip")
    assert skipping.gives_up(start, position) and not source.gives_up(start, position)
    assert lab.values(skipping, position) == [b"3", b"4", b"5", b"6", b"7"]


def test_a_topic_that_an_update_of_its_brokers_gives_an_id_was_not_recreated(lab: KafkaLab) -> None:
    """Brokers before Kafka 2.8 have none, and show zeros; while they are updated, one by one, both are seen."""
    topic = lab.server.topic(2)
    lab.server.send(topic, ROWS[:4], 0)
    lab.server.send(topic, ROWS[4:6], 1)
    for on_gone in ("fail", "skip"):
        source = lab.source(topic, on_gone=on_gone)
        start = source.initial()
        end = source.latest(start, ALL)
        older, rest = _without_id(source.latest(start, Limit(3, 10**9))), source.latest(start, Limit(3, 10**9))
        source.verify(older, end)
        assert source.latest(older, ALL)["topics"][topic]["id"] == end["topics"][topic]["id"]
        assert (source.lag(older), len(lab.read(source, older, end))) == (3, 3)
        assert len(lab.read(source, rest, _without_id(end))) == 3
        assert source.within(older, end, [topic, 1, 2])["topics"][topic]["next"] == [4, 2]


def _without_id(position: Any) -> Any:
    """Return a position as brokers without ids would have given it."""
    topics = {name: {**one, "id": NO_ID} for name, one in position["topics"].items()}
    return {"topics": topics}


def test_an_older_broker_does_not_take_the_id_of_a_topic(lab: KafkaLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a topic that is recreated later would not be noticed."""
    topic = lab.server.topic()
    lab.server.send(topic, ROWS[:3])
    source = lab.source(topic)
    position = source.latest(source.initial(), ALL)
    lab.server.send(topic, ROWS[3:5])
    known = Cluster.known

    def as_older(cluster: Cluster, names: Sequence[str]) -> dict[str, KnownTopic]:
        return {name: one._replace(id=NO_ID) for name, one in known(cluster, names).items()}

    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "known", as_older)
        later = source.latest(position, ALL)
    assert later["topics"][topic] == {**position["topics"][topic], "next": [5]}


def _made(lab: KafkaLab, topic: str) -> bool:
    try:
        lab.server.topic(name=topic)
    except Exception:  # noqa: BLE001  # it is still being removed
        return False
    return True


def test_a_topic_of_a_pattern_that_was_deleted_is_told(lab: KafkaLab) -> None:
    """It is unknown whether it was read to its end."""
    topic, other = lab.server.topic(), lab.server.topic()
    lab.server.send(topic, ROWS[:1])
    source = lab.source(f"{other},^{topic}")
    position = source.latest(source.initial(), ALL)
    lab.server.delete(topic)
    with pytest.raises(FatalError, match="was deleted") as error:
        source.latest(position, ALL)
    assert error.value.code == "kafka.no_topic" and "on-gone: skip" in (error.value.fix or "")
    assert lab.source(f"{other},^{topic}", on_gone="skip").latest(position, ALL) == position
    assert lab.source(other).latest(position, ALL) == position


def test_a_topic_of_a_pattern_may_go_while_it_is_looked_at(lab: KafkaLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at its partitions and that at their offsets: with ``on-gone: skip``, it is just not there."""
    stays, goes = lab.server.topic(), lab.server.topic()
    lab.server.send(stays, ROWS[:1])
    source = lab.source(f"{stays},^{goes}", on_gone="skip")
    describe, deleted = Cluster.describe, list[str]()

    def then_delete(cluster: Cluster, names: Sequence[str]) -> dict[str, tuple[str, int]]:
        found = describe(cluster, names)
        if not deleted:
            deleted.append(goes)
            lab.server.delete(goes)
        return found

    monkeypatch.setattr(Cluster, "describe", then_delete)
    assert list(source.latest(source.initial(), ALL)["topics"]) == [stays]
    assert deleted


def test_messages_that_retention_removed_unread_are_told(lab: KafkaLab) -> None:
    """Never skipped by default; one that was read before its removal does not count."""
    topic = lab.server.topic()
    lab.server.send(topic, ROWS)
    source, skipping = lab.source(topic), lab.source(topic, on_gone="skip")
    start = source.initial()
    third = source.latest(start, Limit(3, 10**9))
    end = source.latest(third, ALL)
    lab.server.delete_before(topic, 0, 3)
    assert lab.values(source, third) == [b"3", b"4", b"5", b"6", b"7", b"8", b"9"]
    lab.server.delete_before(topic, 0, 5)
    with pytest.raises(FatalError, match="messages 3 to 4 were removed before they were read") as error:
        source.latest(third, ALL)
    assert error.value.code == "kafka.range_gone"
    for call in (lambda: source.verify(third, end), lambda: lab.read(source, third, end)):
        with pytest.raises(FatalError) as error:
            call()
        assert error.value.code == "kafka.range_gone"
    assert skipping.gives_up(third, end)
    further, found = lab.step(skipping, third)
    assert [record.after for record in found] == [b"5", b"6", b"7", b"8", b"9"]
    assert skipping.latest(further, ALL) == further


def test_skip_needs_no_operator_where_retention_overtakes_a_step(lab: KafkaLab) -> None:
    """What it removes before a task reads it is skipped by the next attempt; what was read before counts."""
    topic = lab.server.topic()
    lab.server.send(topic, ROWS)
    source = lab.source(topic, on_gone="skip")
    third = source.latest(source.initial(), Limit(3, 10**9))
    end = source.latest(third, ALL)
    lab.server.delete_before(topic, 0, 5)
    with pytest.raises(TransientError, match="not all there any more") as error:
        lab.read(source, third, end)
    assert error.value.code == "kafka.range_gone"
    assert source.gives_up(third, end)
    again = source.latest(third, ALL)
    assert [record.after for record in lab.read(source, third, again)] == [b"5", b"6", b"7", b"8", b"9"]
    lab.server.delete_before(topic, 0, 7)
    source.verify(third, again)


def test_a_position_may_be_rewound_to_after_the_oldest_messages_are_gone(lab: KafkaLab) -> None:
    """What was read before it need not be there any more."""
    topic = lab.server.topic()
    lab.server.send(topic, ROWS)
    source, skipping = lab.source(topic), lab.source(topic, on_gone="skip")
    sixth = source.latest(source.initial(), Limit(6, 10**9))
    end = source.latest(sixth, ALL)
    lab.server.delete_before(topic, 0, 5)
    check_position(source, "p:in", end, sixth)
    assert lab.values(source, sixth) == [b"6", b"7", b"8", b"9"]
    assert skipping.gives_up(skipping.initial(), sixth), "as a step, it lacks messages"
    lab.server.delete_before(topic, 0, 7)
    with pytest.raises(FatalError, match="messages 6 to 6 were removed") as error:
        check_position(source, "p:in", end, sixth)
    assert error.value.code == "positions.invalid"


def test_a_topic_that_is_missing(lab: KafkaLab) -> None:
    with pytest.raises(FatalError) as error:
        lab.source("no-such-topic").horizon()
    assert error.value.code == "kafka.no_topic"
    assert error.value.fix == f"kafka-topics.sh --bootstrap-server {lab.server.servers} --create --topic no-such-topic"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"servers": ""}, "no server is named"),
        ({"servers": "http://h:1"}, "is not a server"),
        ({"topics": ""}, "no topic is named"),
        ({"topics": "a b"}, "is not a topic's name"),
        ({"topics": "^("}, "not a regular expression"),
        ({"start-from": "yesterday"}, "is not a place to start"),
        ({"start-from": "2026-08-02T10:00:00"}, "is not a place to start"),
        ({"saslMechanism": "PLAIN"}, "needs a user"),
        ({"saslUsername": "u"}, "needs a user and a password"),
        ({"clientCert": "x"}, "needs its key"),
    ],
)
def test_settings_that_can_not_be(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        KafkaSourceSettings.model_validate({"servers": "h:9092", "topics": "t", **settings})
