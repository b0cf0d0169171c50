"""Owners of deliveries to Kafka that are frozen until another has taken over their transactional id.

Where an old one goes on in the middle of a transaction, brokers refuse the rest of it: it was aborted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from engine.frozen.frozen_cases import Case, cases
from engine.frozen.frozen_round import Ending, play, require_unchanged
from lab.choice import some
from lab.kafka_server import KafkaServer, metadata_of
from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

STRATEGIES = some(["exactly-once"], ["at-most-once"])
CASES = [case for strategy in STRATEGIES for case in cases("kafka", strategy)]
LOST = {"lease.lost", "file.missing", "kafka.fenced"}
"""What an old owner may say: it finds out at the store, at its staging that was cleaned up, or at the brokers."""

Played = Callable[[str], dict[str, Ending]]


@pytest.fixture(scope="module")
def played(
    tmp_path_factory: pytest.TempPathFactory, spark: SparkSession, connect_server: Any, kafka_server: KafkaServer
) -> Played:
    """One victim process for each strategy, started on first use."""

    @cache
    def play_all(strategy: str) -> dict[str, Ending]:
        folder = tmp_path_factory.mktemp(f"kafka-{strategy}")
        return play("kafka", strategy, folder, spark, connect_server, kafka_server.servers)

    return play_all


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_frozen_producer_changes_nothing(case: Case, played: Played) -> None:
    require_unchanged(played(case.strategy)[case.name], LOST)


def test_a_transaction_that_was_frozen_is_aborted(played: Played, kafka_server: KafkaServer) -> None:
    """Its messages had reached the brokers when its owner stopped: readers of uncommitted ones see them twice."""
    ending = played("exactly-once")["kafka_eo_mid_publish"]
    [topic] = [name for name in metadata_of(kafka_server.admin).topics if name.endswith(ending.case.name)]
    seen = Counter(one["i"] for one in kafka_server.values(topic, "read_uncommitted"))
    assert sorted(seen) == ending.case.out
    assert {count for count in seen.values() if count > 1} == {2}
    assert ending.thawed["error"] is not None
