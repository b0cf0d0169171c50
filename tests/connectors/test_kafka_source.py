"""The kafka source: which messages are read, and the errors for those that are gone."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from lab.kafka_lab import ALL, KafkaLab
from lab.kafka_server import KafkaServer
from lab.waiting import wait_until
from pydantic import ValidationError
from structlog.testing import capture_logs

from conduit_dagster.connectors.kafka.partition_reader import in_range
from conduit_dagster.connectors.kafka.settings import KafkaSourceSettings
from conduit_dagster.connectors.kafka.source import KafkaSource
from conduit_dagster.daemon_threads import has_ended, in_daemon
from conduit_dagster.engine.operate.rewind import check_position
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import Limit, Position, ReadOptions

pytestmark = pytest.mark.slow
ROWS = [(b"k%d" % i, b"%d" % i) for i in range(10)]


@pytest.fixture
def lab(kafka_server: KafkaServer, tmp_path: Path) -> KafkaLab:
    return KafkaLab(kafka_server, tmp_path)


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
        assert "positions rewind" in (error.value.fix or "") and "on-gone: skip" in (error.value.fix or "")
    skipping = lab.source(topic, on_gone="skip")
    assert skipping.gives_up(start, position) and not source.gives_up(start, position)
    assert lab.values(skipping, position) == [b"3", b"4", b"5", b"6", b"7"]


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


# -- groups -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
def test_a_group_is_told_only_when_it_is_wanted(lab: KafkaLab, commits: bool) -> None:
    topic = lab.server.topic(2)
    lab.server.send(topic, ROWS)
    group = f"g-{topic}"
    source = lab.source(topic, commit_offsets=str(commits).lower(), groupID=group)
    end = source.latest(source.initial(), ALL)
    source.ack(end, 1)
    source.ack(end, 1)
    wanted = end["topics"][topic]["next"] if commits else [-1001, -1001]
    # within close alone, a busy broker's answer might not come in time
    wait_until(lambda: _committed(lab, group, topic, 2) == wanted, "the group's offsets are those")
    source.close()
    assert _committed(lab, group, topic, 2) == wanted


def _committed(lab: KafkaLab, group: str, topic: str, partitions: int = 1) -> list[int]:
    consumer = Consumer({"bootstrap.servers": lab.server.servers, "group.id": group})
    try:
        found = consumer.committed([TopicPartition(topic, number) for number in range(partitions)], 120)
    finally:
        consumer.close()
    return [one.offset for one in found]


def test_an_ack_waits_for_no_broker_that_is_silent(lab: KafkaLab) -> None:
    """Offsets in the group are for monitors only: the run goes on, and a later ack commits them."""
    topic = lab.server.topic()
    lab.server.send(topic, ROWS)
    group = f"g-{topic}"
    source = lab.source(topic, commit_offsets="true", groupID=group)
    start = source.initial()
    third = source.latest(start, Limit(3, 10**9))
    end = source.latest(third, ALL)
    source.ack(third, 1)
    with lab.server.frozen():
        acked = in_daemon(lambda: [source.ack(end, 1), source.ack(end, 1)], "acks")
        assert has_ended(acked, 30)

    def is_committed() -> bool:
        source.ack(end, 1)
        return _committed(lab, group, topic) == [len(ROWS)]

    wait_until(is_committed, "a later ack commits the offsets")
    source.close()


def test_offsets_that_waited_for_an_answer_are_committed_at_the_end(lab: KafkaLab) -> None:
    """Otherwise a monitor would show a lag where everything is delivered, until the next run."""
    topic = lab.server.topic()
    lab.server.send(topic, ROWS)
    group = f"g-{topic}"
    source = lab.source(topic, commit_offsets="true", groupID=group)
    third = source.latest(source.initial(), Limit(3, 10**9))
    end = source.latest(third, ALL)
    with lab.server.frozen():
        acked = in_daemon(lambda: [source.ack(third, 1), source.ack(end, 1)], "acks")
        assert has_ended(acked, 30)
    wait_until(lambda: _committed(lab, group, topic) == [3], "the first offsets are there")
    source.close()
    wait_until(lambda: _committed(lab, group, topic) == [len(ROWS)], "the last ones follow")


def test_a_topic_that_was_deleted_keeps_no_other_offset_from_its_group(lab: KafkaLab) -> None:
    gone, topic = lab.server.topic(), lab.server.topic()
    for name in (gone, topic):
        lab.server.send(name, ROWS)
    source = lab.source(f"^({gone}|{topic})", commit_offsets="true", on_gone="skip", groupID=f"g-{topic}")
    end = source.latest(source.initial(), ALL)
    lab.server.delete(gone)
    with capture_logs() as logs:
        source.ack(end, 1)
        wait_until(lambda: _committed(lab, f"g-{topic}", topic) == [len(ROWS)], "the other topic's offset is there")
        source.close()
    # a busy broker may take more than two seconds, which is told as well
    assert [one for one in logs if "not answered yet" not in str(one)] == []


# -- outages and logins -------------------------------------------------------------------------------------------


def test_a_broker_that_is_silent_is_an_outage(lab: KafkaLab) -> None:
    """On the driver and in a task, after a bounded time; then the same source continues."""
    topic = lab.server.topic()
    lab.server.send(topic, ROWS)
    patient, source = lab.source(topic), lab.source(topic, timeout="3s")
    start = patient.initial()
    end = patient.latest(start, ALL)
    with lab.server.frozen():
        for call in (lambda: source.latest(start, ALL), lambda: lab.read(source, start, end)):
            with pytest.raises(TransientError) as error:
                call()
            assert error.value.code == "kafka.unreachable", error.value
    # a broker that was silent for longer than its session leads no partition for a moment
    wait_until(lambda: _numbers_read(lab, source, start, end) == 10, "the same source continues")


def _numbers_read(lab: KafkaLab, source: KafkaSource, start: Position, end: Position) -> int:
    """Read a range; return the number of its records, or 0 for an outage."""
    try:
        return len(lab.read(source, start, end))
    except TransientError:
        return 0


def test_a_broker_that_restarts_in_the_middle_of_a_range(lab: KafkaLab) -> None:
    """The reader waits for it and continues: every message once."""
    topic = lab.server.topic()
    rows = [(None, b"%d" % i + b"x" * 5_000) for i in range(4_000)]
    lab.server.send(topic, rows)
    source = lab.source(topic, timeout="100s")  # a busy machine takes more than the usual half a minute for a start
    end = source.latest(source.initial(), ALL)
    [split] = source.split(source.initial(), end, 1)
    blocks = source.read(split, ReadOptions())
    found = list(next(blocks).records)
    lab.server.kill()
    lab.server.start()
    found += [record for block in blocks for record in block.records]
    assert [record.after for record in found] == [value for _, value in rows]


class _Event:
    """A message or an event, as far as a range's end depends on it."""

    def __init__(self, offset: int, code: int | None = None) -> None:
        self._offset, self._error = offset, None if code is None else KafkaError(code)

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error


@given(
    offsets=st.lists(st.integers(0, 20), unique=True).map(sorted),
    events=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 21), st.booleans()), max_size=3),
    end=st.integers(0, 21),
)
def test_a_range_ends_where_it_was_planned(offsets: list[int], events: list[tuple[int, int, bool]], end: int) -> None:
    """Wherever events stand among the messages."""
    got = [_Event(offset) for offset in offsets]
    for place, offset, is_eof in events:
        got.insert(place, _Event(offset, KafkaError._PARTITION_EOF if is_eof else KafkaError._TRANSPORT))
    messages, ended, error = in_range(cast(list[Message], got), end)
    assert [message.offset() for message in messages] == [offset for offset in offsets if offset < end]
    reached = [offset for _, offset, is_eof in events if is_eof] + offsets
    assert ended == any(offset >= end for offset in reached)
    assert (error is not None) == any(not is_eof for _, _, is_eof in events)


class _Rewinding(Consumer):
    """A client that goes back to offset 150, once."""

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        found = super().consume(min(num_messages, 100), timeout)
        for message in found:
            if (message.offset() or 0) >= 200 and not hasattr(self, "rewound"):
                self.rewound = True
                self.seek(TopicPartition(message.topic() or "", 0, 150))
        return found


def test_a_client_that_goes_back_gives_no_message_twice(lab: KafkaLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task fails there; what it gave before is each message once."""
    topic = lab.server.topic()
    lab.server.send(topic, [(None, b"%d" % i) for i in range(2_000)])
    source = lab.source(topic)
    end = source.latest(source.initial(), ALL)
    monkeypatch.setattr("conduit_dagster.connectors.kafka.partition_reader.Consumer", _Rewinding)
    [split] = source.split(source.initial(), end, 1)
    given = list[object]()
    with pytest.raises(TransientError, match="went back behind offset") as error:
        for block in source.read(split, ReadOptions()):
            given += [record.after for record in block.records]
    assert error.value.code == "kafka.server"
    assert given == [b"%d" % i for i in range(len(given))] and 200 < len(given) < 2_000
    monkeypatch.undo()
    assert len(lab.read(source, source.initial(), end)) == 2_000


def test_messages_that_the_brokers_lost_are_awaited_even_with_skip(lab: KafkaLab) -> None:
    """Going on before them would deliver acked messages again, under hashes that may be taken."""
    topic = lab.server.topic()
    lab.server.send(topic, ROWS)
    source = lab.source(topic, on_gone="skip")
    end = source.latest(source.initial(), ALL)
    lost = {"topics": {topic: {**end["topics"][topic], "next": [len(ROWS) + 5]}}}
    with pytest.raises(TransientError, match="brokers have lost messages") as error:
        source.latest(lost, ALL)
    assert error.value.code == "kafka.behind"
    assert not source.gives_up(source.initial(), end)


def test_partitions_that_a_broker_does_not_show_yet_are_awaited(lab: KafkaLab) -> None:
    """Its metadata may be older than the position."""
    topic = lab.server.topic()
    lab.server.send(topic, ROWS)
    source = lab.source(topic)
    end = source.latest(source.initial(), ALL)
    known = end["topics"][topic]
    ahead = {"topics": {topic: {**known, "next": [*known["next"], 5], "first": [*known["first"], 0]}}}
    for call in (lambda: source.latest(ahead, ALL), lambda: source.verify(end, ahead)):
        with pytest.raises(TransientError, match=f"show 1 of the 2 partitions of {topic}") as error:
            call()
        assert error.value.code == "kafka.behind"


@pytest.mark.parametrize("begin", [len(ROWS), len(ROWS) + 5])
def test_a_planned_range_that_the_brokers_lost_is_awaited(lab: KafkaLab, begin: int) -> None:
    """A step that was planned before a crash of both: not taken for one that retention removed, nor for a silence."""
    topic = lab.server.topic()
    lab.server.send(topic, ROWS)
    source = lab.source(topic, timeout="2s")
    known = source.latest(source.initial(), ALL)["topics"][topic]
    start, end = ({"topics": {topic: {**known, "next": [offset]}}} for offset in (begin, begin + 5))
    with pytest.raises(TransientError, match=f"ends at {len(ROWS)}, and {begin} comes next") as error:
        lab.read(source, start, end)
    assert error.value.code == "kafka.behind"


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
