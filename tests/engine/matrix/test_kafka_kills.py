"""The kill matrix with Kafka as destination: our process is killed at each line, and the broker with it.

The next run, after the broker has come back, finds out what was committed: every record is there once for two readers
of committed messages, and so is every dead letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from engine.matrix.kill_cases import Case, Combination
from engine.matrix.kill_plan import kills
from engine.matrix.kill_reach import reachable
from engine.matrix.kill_round import Round, World
from lab.choice import in_matrix
from lab.kafka_server import KafkaServer
from pyspark.sql import SparkSession

from conduit_dagster.recovery.kill_points import POINTS

pytestmark = pytest.mark.slow
_PUBLISHING = ("before-publish", "mid-publish", "after-publish", "after-delivered")
_REFUSING = ("after-split", "after-claim", "before-child", "after-child", "before-nack", "after-nack")
_CHOICE = {
    "one": ("after-prepare", *_PUBLISHING, "before-done"),
    "bulk": ("after-claim", "after-child", "before-nack"),
}
"""By default a choice of a minute; ``make matrix`` takes every line, and more pipelines."""


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession, connect_server: Any, kafka_server: KafkaServer) -> World:
    """The broker in place of a database."""
    return World(spark, connect_server, lambda: kafka_server.servers, tmp_path)


def test_killed_at_lines_that_matter_with_the_broker(world: World, kafka_server: KafkaServer) -> None:
    """Of each pipeline one case per line, at its second passage where it has steps behind it."""
    cases = [
        Case(Combination("kafka", scenario, "exactly-once"), (f"{point}:{_passage(point)}",))
        for scenario, points in _CHOICE.items()
        for point in points
    ]
    _judge(world, kafka_server, cases)


def _passage(point: str) -> int:
    return 1 if point in ("after-lease", "after-fence", *_REFUSING) else 2


@in_matrix
@pytest.mark.parametrize(
    ("scenario", "strategy"),
    [
        ("one", "exactly-once"),
        ("one", "at-least-once"),
        ("one", "at-most-once"),
        ("two", "exactly-once"),
        ("refused", "exactly-once"),
        ("bulk", "exactly-once"),
    ],
)
def test_killed_at_each_line(scenario: str, strategy: str, world: World, kafka_server: KafkaServer) -> None:
    of = Combination("kafka", scenario, strategy)
    control = Round(world.within("control"), [Case(of, ())])
    passed = control.passed()
    assert not control.judge()
    times = passed[control.members[0].pipeline]
    assert {point for point in POINTS if times[point]} == set(reachable(of.plan, of.strategy))
    _judge(world, kafka_server, kills(of, times))


def _judge(world: World, server: KafkaServer, cases: Sequence[Case]) -> None:
    killed = Round(world.within("round"), cases)
    killed.kill()
    server.kill()
    server.start()
    flaws = [f"{member.case}: was not killed: {member.survived}" for member in killed.members if member.survived]
    flaws += killed.judge()
    assert not flaws, "\n".join(flaws)
