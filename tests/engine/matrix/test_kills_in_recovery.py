"""SIGKILL while a run recovers from an earlier one: the promises of ``test_kill_matrix.py`` hold."""

from __future__ import annotations

import pytest
from engine.matrix.kill_again import pairs
from engine.matrix.kill_cases import Case, Combination
from engine.matrix.kill_destinations import PLACES
from engine.matrix.kill_plan import outcome
from engine.matrix.kill_round import World
from lab.choice import in_matrix

pytestmark = pytest.mark.slow

PAIRS_SEED, PAIRS = 20, 30


def _judge(world: World, cases: list[Case]) -> None:
    """Kills all of them; every promise must hold."""
    flaws = outcome(world, cases)
    assert not flaws, "\n".join(flaws)


def test_killed_again_during_recovery(world: World) -> None:
    """Recovery can be killed at any line and repeated."""
    cases = pairs(PAIRS_SEED, PAIRS, tuple(PLACES), ("one", "two", "nacks", "merge", "refused"))
    _judge(world, cases)


@in_matrix
def test_killed_again_and_again(world: World) -> None:
    """Six runs die one after the other, each further on in the same step."""
    deaths = ("after-prepare", "after-lease", "before-publish", "after-publish", "after-delivered", "before-done")
    cases = [Case(Combination(kind, "two", "exactly-once"), tuple(f"{d}:1" for d in deaths)) for kind in PLACES]
    _judge(world, cases)
