"""The kafka source: what a step takes of each partition, and how tasks share it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lab.kafka_lab import ALL, ROWS, KafkaLab

from conduit_dagster.connectors.kafka import message_sizes
from conduit_dagster.connectors.kafka.message_sizes import shares, within_bytes
from conduit_dagster.connectors.kafka.partition_reader import some_messages
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import MISCOUNTED, Limit, ReadOptions

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy broker takes longer for a sample than a step waits for it; the step would then be another one."""
    monkeypatch.setattr(message_sizes, "_PATIENCE", 60.0)


def test_a_few_messages_in_many_partitions_take_no_wait_for_each(lab: KafkaLab) -> None:
    """Brokers answer for the end of a partition after a wait, which the next partition has to sit out."""
    topic = lab.server.topic(64)
    lab.server.send_to_each(topic, b"x", 64)
    source = lab.source(topic)
    start = source.initial()
    end, seconds = source.latest(start, ALL), list[float]()
    while len(seconds) < 10 and min(seconds, default=9.0) > 0.64:
        begun = time.monotonic()
        assert len(lab.read(source, start, end)) == 64
        seconds.append(time.monotonic() - begun)
    assert min(seconds) < 64 * 0.02


# -- how much of each partition -----------------------------------------------------------------------------------


def test_no_partition_waits_for_another() -> None:
    """In sum the limit, or everything there is; small ones are taken whole."""
    a, b, c = (("t", number) for number in range(3))
    assert shares({a: 100, b: 3, c: 100}, 23) == {a: 10, b: 3, c: 10}
    assert shares({a: 1, b: 2}, 100) == {a: 1, b: 2}
    assert sum(shares({("t", number): 9 for number in range(7)}, 10).values()) == 10
    assert shares({}, 5) == {}


def test_bytes_are_shared_as_messages_are() -> None:
    """A partition with small messages leaves its rest to others; each makes progress, however large a message is."""
    a, b, c = (("t", number) for number in range(3))
    assert within_bytes({a: 100, b: 100, c: 100}, {a: 1.0, b: 10.0, c: 100.0}, 1_000) == {a: 100, b: 45, c: 4}
    assert within_bytes({a: 5, b: 5}, {a: 1_000.0, b: 10.0}, 100) == {a: 1, b: 5}
    assert within_bytes({a: 5, b: 7}, {a: 10.0, b: 0.0}, 1_000) == {a: 5, b: 7}


def test_a_step_of_large_messages_is_limited_by_its_bytes(lab: KafkaLab) -> None:
    """A megabyte each: from every partition as many as fit. Steps of small ones are limited by their number."""
    large, small, total = lab.server.topic(2), lab.server.topic(), 0
    for partition in range(2):
        lab.server.send(large, [(None, b"x" * 999_000)] * 20, partition)
    lab.server.send(small, [(None, b"%d" % i) for i in range(2_000)])
    source, limit = lab.source(large), Limit(10**6, 8_000_000)
    position, sizes = source.initial(), list[int]()
    while (end := source.latest(position, limit)) != position:
        sizes.append(sum(len(record.after) for record in lab.read(source, position, end)))  # type: ignore[arg-type]
        position, total = end, total + sizes[-1]
    assert total == 40 * 999_000 and max(sizes) <= 8_000_000 and len(sizes) <= 6
    few = lab.source(small)
    assert len(lab.read(few, few.initial(), few.latest(few.initial(), limit))) == 2_000


def test_a_busy_broker_is_waited_for_longer(lab: KafkaLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes three seconds for a sample: every step had a few messages, as if each were as large as can be."""
    topic, clock = lab.server.topic(), [0.0, 0.0]
    lab.server.send(topic, [(None, b"x" * 100)] * 2_000)
    sample = message_sizes.MessageSizes._sample

    def begun(sizes: message_sizes.MessageSizes, offsets: Any) -> Any:
        clock[1] = clock[0]
        return sample(sizes, offsets)

    def busy(consumer: Any, count: int) -> Any:
        clock[0] += 0.5
        return some_messages(consumer, count) if clock[0] - clock[1] >= 3 else []

    monkeypatch.setattr(message_sizes, "_PATIENCE", 1.0)
    monkeypatch.setattr(message_sizes.MessageSizes, "_sample", begun)
    monkeypatch.setattr(message_sizes, "some_messages", busy)
    monkeypatch.setattr(message_sizes, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    source = lab.source(topic)
    steps = list[int]()
    for _ in range(3):
        clock[0] += 2
        end = source.latest(source.initial(), Limit(10**6, 8_000_000))
        steps.append(len(lab.read(source, source.initial(), end)))
    assert steps[0] < 10 and steps[-1] == 2_000


def test_sizes_that_change_are_noticed_where_a_step_would_end(lab: KafkaLab) -> None:
    """A thousand small messages, then large ones: the step is bounded by the larger."""
    topic = lab.server.topic()
    lab.server.send(topic, [(None, b"x" * 100)] * 1_000)
    lab.server.send(topic, [(None, b"x" * 500_000)] * 60)
    source = lab.source(topic)
    end = source.latest(source.initial(), Limit(10**6, 5_000_000))
    assert sum(len(record.after) for record in lab.read(source, source.initial(), end)) <= 5_000_000  # type: ignore[arg-type]


_READ_ALL = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from types import SimpleNamespace
from lab.kafka_lab import ALL, KafkaLab
from conduit_dagster.sdk import ReadOptions
source = KafkaLab(SimpleNamespace(servers=sys.argv[2]), Path()).source(sys.argv[3])
end = source.latest(source.initial(), ALL)
[split] = source.split(source.initial(), end, 1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total = sum(len(record.after) for block in source.read(split, ReadOptions()) for record in block.records)
print(total, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_a_step(lab: KafkaLab) -> None:
    """A task that reads 400 MB in messages of a megabyte holds what the client fetches ahead, and a block."""
    topic = lab.server.topic()
    lab.server.send(topic, [(None, b"x" * 999_000)] * 400)
    command = [sys.executable, "-c", _READ_ALL, str(Path(__file__).parents[2]), lab.server.servers, topic]
    total, grown = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()
    unit = 1 if sys.platform == "darwin" else 1_024
    assert int(total) == 400 * 999_000
    assert int(grown) * unit < 200_000_000


# -- how tasks share it -------------------------------------------------------------------------------------------


def test_a_gap_in_a_topic_that_is_said_to_have_none_stops_the_step(lab: KafkaLab) -> None:
    topic = lab.server.topic()
    lab.server.transaction(topic, ROWS[:3])
    source = lab.source(topic, dense_offsets="true")
    with pytest.raises(FatalError) as error:
        lab.step(source, source.initial())
    assert error.value.code == "kafka.gap" and "remove dense-offsets" in (error.value.fix or "")


@pytest.mark.parametrize("settings", [{}, {"dense_offsets": "true"}, {"dense_offsets": "false"}])
def test_how_a_large_step_is_cut(lab: KafkaLab, settings: dict[str, str]) -> None:
    """By default by assumption: a gap that no sample shows is reported as such, and one piece reads everything."""
    topic = lab.server.topic()
    lab.server.send(topic, [(None, b"x" * 9_000)] * 700)
    lab.server.transaction(topic, ROWS[:2])
    lab.server.send(topic, [(None, b"y" * 9_000)] * 300)
    source = lab.source(topic, **settings)
    start = source.initial()
    end = source.latest(start, Limit(10**6, 50_000_000))
    splits = source.split(start, end, 2)
    assert {split.assumed for split in splits} == {not settings}
    assert len(splits) == (1 if "false" in settings.values() else 2)
    if len(splits) == 2:
        with pytest.raises(FatalError) as error:
            lab.read(source, start, end)
        assert error.value.code == ("kafka.gap" if settings else MISCOUNTED)
        assert "a gap after 701" in error.value.message
    if not settings:
        [split] = source.split(start, end, 1)
        assert not split.assumed and split.records is None
        assert sum(len(block.records) for block in source.read(split, ReadOptions())) == 1002


def test_where_a_sample_shows_a_gap_one_task_reads_at_once(lab: KafkaLab) -> None:
    """As in a topic of transactions, whose last offset is a marker."""
    topic = lab.server.topic()
    lab.server.transaction(topic, [(None, b"x" * 9_000)] * 700)
    source = lab.source(topic)
    start = source.initial()
    assert len(source.split(start, source.latest(start, Limit(10**6, 50_000_000)), 2)) == 1
