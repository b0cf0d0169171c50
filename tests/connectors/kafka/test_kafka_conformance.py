"""The conformance suites of sources and destinations, with a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from lab.conformance_runs import Make
from lab.kafka_lab import KafkaLab
from lab.kafka_server import KafkaServer, Row

from conduit_dagster.record import Record
from conduit_dagster.sdk import Limit, Position, ResumeState
from conduit_dagster.testing.conformance import DestinationConformance, SourceConformance
from conduit_dagster.testing.conformance.sources import read_range

pytestmark = pytest.mark.slow


ROWS: list[Row] = [(b"k%d" % i, b"%d" % i if i % 9 else None) for i in range(24)]


@pytest.fixture(scope="module")
def gaps(kafka_server: KafkaServer) -> str:
    """Messages of transactions, committed and aborted, with plain ones between them, and an aborted one at the end."""
    topic = kafka_server.topic(2)
    for partition in (0, 1):
        for number in range(4):
            kafka_server.transaction(topic, ROWS[number * 4 : number * 4 + 4], partition, commit=number != 1)
    kafka_server.send(topic, ROWS[:4], 1)
    kafka_server.transaction(topic, ROWS[:3], 0, commit=False)
    return topic


@pytest.fixture(scope="module")
def dense(kafka_server: KafkaServer) -> str:
    """One partition without gaps; with headers and tombstones."""
    topic = kafka_server.topic()
    kafka_server.send(topic, ROWS)
    kafka_server.send(topic, ROWS[:2], headers=[("h", b"x"), ("raw", b"\xff")])
    return topic


class TestKafkaSource(SourceConformance):
    @pytest.fixture
    def make(self, tmp_path: Path, kafka_server: KafkaServer, dense: str) -> Make:
        lab = KafkaLab(kafka_server, tmp_path)
        return lambda: lab.source(dense, dense_offsets="true")


class TestSeveralPartitions(SourceConformance):
    """Two topics, three partitions: they have no common order, so a limit decides which comes first."""

    @pytest.fixture
    def make(self, tmp_path: Path, kafka_server: KafkaServer, gaps: str, dense: str) -> Make:
        lab = KafkaLab(kafka_server, tmp_path)
        return lambda: lab.source(f"{gaps},^{dense[:-1]}.")

    @pytest.mark.parametrize("most", [3, 17])
    def test_steps_add_up(self, make: Make, end: Position, records: list[Record], most: int) -> None:
        source, found = make(), list[Record]()
        position = source.initial()
        while (further := source.latest(position, Limit(most, 10**12), source.horizon())) != position:
            step = read_range(make, position, further)
            assert len(step) <= most
            found += step
            position = json.loads(json.dumps(further))
        assert _by_partition(found) == _by_partition(records)
        assert source.place(position) == source.place(end)

    def test_resuming_changes_no_record(self, make: Make, end: Position, records: list[Record]) -> None:
        source = make()
        half = source.latest(source.initial(), Limit(len(records) // 2, 10**12))
        source.resume(ResumeState(half, records[0], {}))
        found = read_range(make, source.initial(), half)
        assert _by_partition(found + read_range(make, half, end)) == _by_partition(records)


def _by_partition(records: list[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(str(record.position).rpartition("/")[0], []).append(record)
    return found


class TestKafkaDestination(DestinationConformance):
    @pytest.fixture
    def topic(self, kafka_server: KafkaServer) -> str:
        return kafka_server.topic()

    @pytest.fixture
    def make(self, tmp_path: Path, kafka_server: KafkaServer, topic: str) -> Make:
        lab = KafkaLab(kafka_server, tmp_path)
        return lambda: lab.destination(topic)

    @pytest.fixture
    def delivered(self, kafka_server: KafkaServer, topic: str) -> Callable[[], list[int]]:
        return lambda: [value["i"] for value in kafka_server.values(topic)]


class TestKafkaDestinationAtLeastOnce(TestKafkaDestination):
    @pytest.fixture
    def make(self, tmp_path: Path, kafka_server: KafkaServer, topic: str) -> Make:
        lab = KafkaLab(kafka_server, tmp_path)

        def made() -> object:
            destination = lab.destination(topic, strategy="at-least-once")
            destination.strategies = frozenset({"at-least-once"})
            return destination

        return made
