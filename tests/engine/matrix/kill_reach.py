"""Which kill points a pipeline can never pass, and why: all others must be passed, so the matrix can't shrink."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from engine.matrix.kill_scenarios import Scenario

from conduit_dagster.recovery.kill_points import POINTS


class Never(NamedTuple):
    """Points that are not passed if ``when`` holds for a scenario and a strategy."""

    points: tuple[str, ...]
    reason: str
    when: Callable[[Scenario, str], bool]


def _logs(scenario: Scenario) -> bool:
    return scenario.delivery.get("log") == "records" or scenario.fan_in == "join"


UNREACHABLE = (
    Never(
        ("before-log", "after-log-stage", "after-log"),
        "with log: positions, and fan-in: merge, nothing is logged",
        lambda scenario, strategy: not _logs(scenario),
    ),
    Never(
        ("mid-index",),
        "no record is nacked before publishing, so the step's index has no rows",
        lambda scenario, strategy: not scenario.nacked,
    ),
    Never(
        ("before-replan", "after-replan"),
        "no nack exceeds the window, so no step is cut",
        lambda scenario, strategy: scenario.end is None,
    ),
    Never(
        ("before-split", "after-split", "before-claim", "after-claim", "before-child", "after-child"),
        "the destination refuses nothing, so no delivery is sent in pieces",
        lambda scenario, strategy: not scenario.refused,
    ),
    Never(
        ("before-nack", "after-nack"),
        "the destination refuses nothing; nacks of processors are recorded when the step is prepared",
        lambda scenario, strategy: not scenario.refused,
    ),
    Never(
        ("after-delivered",),
        "at-most-once marks deliveries when the step is prepared, not when they were published",
        lambda scenario, strategy: strategy == "at-most-once",
    ),
)


def unreachable(scenario: Scenario, strategy: str) -> dict[str, str]:
    """Point to the reason why it is never passed."""
    return {point: never.reason for never in UNREACHABLE if never.when(scenario, strategy) for point in never.points}


def reachable(scenario: Scenario, strategy: str) -> list[str]:
    """The points that must be passed."""
    never = unreachable(scenario, strategy)
    return [point for point in POINTS if point not in never]


def passages(times: int, all_of_them: bool) -> list[int]:
    """At which passages to kill, of so many: those of the middle step; of many the first, middle and last."""
    if times <= 2 or all_of_them:
        chosen = list(range(1, times + 1))
    else:
        third = times / 3
        chosen = [n for n in range(1, times + 1) if third < n <= 2 * third]
    return chosen if len(chosen) <= 4 else [chosen[0], chosen[len(chosen) // 2], chosen[-1]]
