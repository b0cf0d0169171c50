"""SIGSTOP at each line of the protocol until another process has taken over, then SIGCONT: nothing lost or doubled."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from engine.frozen.frozen_cases import KINDS, LOGGING, Case, cases
from engine.frozen.frozen_round import Ending, play, require_unchanged
from lab.choice import WHOLE
from pyspark.sql import SparkSession

from conduit_dagster.recovery.kill_points import POINTS

pytestmark = pytest.mark.slow

ONCE = KINDS if WHOLE else ("file",)
"""With which at-most-once is tried as well; all of them with both with ``make matrix``."""
EXACTLY = KINDS if WHOLE else ("file", "postgres")
PAIRS = [*((kind, "exactly-once") for kind in EXACTLY), *((kind, "at-most-once") for kind in ONCE)]
CASES = [case for pair in PAIRS for case in cases(*pair)]
LOST = {"lease.lost", "file.changed", "file.missing", "delta.transaction_taken", "postgres.unreachable"}
"""What an old owner may say: it finds out at the store, or earlier: later bytes or commits are behind its own, its
staging was cleaned up by the new owner, its connection was ended by it."""

Rounds = Callable[[str, str], dict[str, Ending]]


@pytest.fixture(scope="module")
def rounds(
    tmp_path_factory: pytest.TempPathFactory, spark: SparkSession, connect_server: Any, postgres_server: Any
) -> Rounds:
    """One victim process for each kind and strategy, started on first use."""

    @cache
    def played(kind: str, strategy: str) -> dict[str, Ending]:
        folder = tmp_path_factory.mktemp(f"{kind}-{strategy}")
        return play(kind, strategy, folder, spark, connect_server, postgres_server.create_database())

    return played


def test_every_point_is_among_them() -> None:
    assert {case.point for case in CASES} == set(POINTS) - set(LOGGING)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_frozen_owner_changes_nothing(case: Case, rounds: Rounds) -> None:
    require_unchanged(rounds(case.kind, case.strategy)[case.name], LOST)
