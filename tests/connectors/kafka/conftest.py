"""A lab on the broker of the whole test run, for tests of the kafka connectors."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.kafka_lab import KafkaLab
from lab.kafka_server import KafkaServer


@pytest.fixture
def lab(kafka_server: KafkaServer, tmp_path: Path) -> KafkaLab:
    """Ask it for sources and destinations of your own."""
    return KafkaLab(kafka_server, tmp_path)
