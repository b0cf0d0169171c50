"""The kafka source while brokers are silent, restart, lag behind, or have lost what they gave."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from lab.kafka_lab import ALL, ROWS, KafkaLab
from lab.waiting import wait_until

from conduit_dagster.connectors.kafka.partition_reader import in_range
from conduit_dagster.connectors.kafka.source import KafkaSource
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.sdk import Position, ReadOptions

pytestmark = pytest.mark.slow


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


def test_an_answer_that_the_client_does_not_give_is_an_outage(lab: KafkaLab) -> None:
    """After a process was frozen, Python's own clock has run out before the client looks at the answer."""
    cluster = lab.source("t", timeout="0.1s")._cluster
    unanswered = Future[Any]()
    error = cluster._answers({"t": unanswered})["t"]
    assert cluster._failed(error, "asking").code == "kafka.unreachable"  # type: ignore[attr-defined]


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
