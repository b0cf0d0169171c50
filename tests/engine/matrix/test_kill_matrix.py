"""SIGKILL before and after each line of the protocol, for each strategy, exactly-once destination and scenario.

exactly-once: every record once, in order, dead letters once. at-least-once: none missing, repeats only of the killed
step. at-most-once: none twice, and what is missing lies in the killed step. A run after that reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine.matrix.kill_cases import Case, combinations
from engine.matrix.kill_destinations import PLACES
from engine.matrix.kill_plan import kills, outcome
from engine.matrix.kill_reach import UNREACHABLE, reachable, unreachable
from engine.matrix.kill_round import Round, World

from conduit_dagster.recovery.kill_points import POINTS

pytestmark = pytest.mark.slow

_AT_ONCE = 3


def groups() -> Iterator[tuple[str, list[str]]]:
    """Kinds of destinations with some of their scenarios: as many as fill about one process that is killed."""
    for kind in PLACES:
        scenarios = list(dict.fromkeys(of.scenario for of in combinations([kind])))
        for begin in range(0, len(scenarios), _AT_ONCE):
            yield kind, scenarios[begin : begin + _AT_ONCE]


def named(kind: str, scenarios: list[str]) -> str:
    return f"{kind}-{'+'.join(scenarios)}"


def test_what_is_not_reachable_is_a_kill_point() -> None:
    """A point that was renamed must not stay excused."""
    assert {point for never in UNREACHABLE for point in never.points} <= set(POINTS)


@pytest.mark.parametrize(("kind", "scenarios"), [pytest.param(*group, id=named(*group)) for group in groups()])
def test_killed_at_each_line(kind: str, scenarios: list[str], world: World) -> None:
    """Each pipeline runs once unharmed, which says how often it passes each point; then it is killed at each."""
    chosen = [of for of in combinations([kind]) if of.scenario in scenarios]
    control = Round(world.within("control"), [Case(of, ()) for of in chosen])
    passed = control.passed()
    assert not control.judge()
    cases: list[Case] = []
    for member in control.members:
        of, times = member.case.of, passed[member.pipeline]
        assert {point for point in POINTS if times[point]} == set(reachable(of.plan, of.strategy)), (
            f"{of}: not passed must be just {unreachable(of.plan, of.strategy)}"
        )
        cases += kills(of, times)
    flaws = outcome(world, cases)
    assert not flaws, "\n".join(flaws)
