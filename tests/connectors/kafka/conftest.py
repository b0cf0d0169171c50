"""A lab on the broker of the whole test run, and several brokers of a test file, for tests of the kafka connectors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.kafka_cluster import KafkaCluster, running_cluster
from lab.kafka_lab import KafkaLab
from lab.kafka_server import KafkaServer


@pytest.fixture
def lab(kafka_server: KafkaServer, tmp_path: Path) -> KafkaLab:
    """Ask it for sources and destinations of your own."""
    return KafkaLab(kafka_server, tmp_path)


@pytest.fixture(scope="module")
def running() -> Iterator[KafkaCluster]:
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(running: KafkaCluster) -> Iterator[KafkaCluster]:
    """Three brokers, as they are again after the test."""
    yield running
    running.mend()
