"""Kills of runs that recover from a kill: pairs of points, sampled by a seed."""

from __future__ import annotations

import random

from engine.matrix.kill_cases import Case, Combination
from engine.matrix.kill_reach import reachable
from engine.matrix.kill_scenarios import SCENARIOS

_ONCE_PER_RUN = ("after-lease", "after-fence", "after-register", "after-reack")


def pairs(seed: int, count: int, kinds: tuple[str, ...], scenarios: tuple[str, ...]) -> list[Case]:
    """First kill in the first step or at the start, second at the first passage of any point in the run after.

    Two steps are left for the second run, so that it passes every point that a whole run passes.
    """
    dice = random.Random(seed)
    cases: dict[str, Case] = {}
    while len(cases) < count:
        scenario = SCENARIOS[dice.choice(scenarios)]
        of = Combination(
            dice.choice([k for k in kinds if k in scenario.kinds]), scenario.name, dice.choice(scenario.strategies)
        )
        points = reachable(scenario, of.strategy)
        case = Case(of, (f"{dice.choice(points)}:1", f"{dice.choice(points)}:1"))
        cases[str(case)] = case
    return list(cases.values())


def soaked(dice: random.Random, of: Combination) -> Case:
    """One to three kills at random points and passages; a point may turn out not to be passed any more."""
    points = reachable(of.plan, of.strategy)
    kills = [_kill(dice, points) for _ in range(dice.choice((1, 1, 2, 3)))]
    return Case(of, tuple(kills))


def _kill(dice: random.Random, points: list[str]) -> str:
    point = dice.choice(points)
    return f"{point}:{1 if point in _ONCE_PER_RUN else dice.randint(1, 6)}"
