"""Which cases the kill matrix has, for a group of pipelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from engine.matrix.kill_cases import Case, Combination
from engine.matrix.kill_destinations import SECOND
from engine.matrix.kill_reach import passages, reachable
from engine.matrix.kill_round import Round, World

_MOST = 60
_MOST_CONNECTED = 28
"""A pipeline that stands still keeps its connections, and a server counts them."""


def kills(of: Combination, passed: Counter[str]) -> list[Case]:
    """A pipeline killed at each of its points, at the passages that :func:`passages` chooses."""
    return [
        Case(of, (f"{point}:{n}",))
        for point in reachable(of.plan, of.strategy)
        for n in passages(passed[point], of.plan.end is not None)
    ]


def rounds(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """As many as fit into one process."""
    most = _MOST_CONNECTED if any(map(_connects, cases)) else _MOST
    for first in range(0, len(cases), most):
        yield list(cases[first : first + most])


def _connects(case: Case) -> bool:
    kind = case.of.kind
    return "postgres" in (kind, SECOND[kind] if case.of.plan.second else kind)


def outcome(world: World, cases: Sequence[Case], must_die: bool = True) -> list[str]:
    """Kills all of them and judges; a list of what is wrong, each with its case."""
    flaws: list[str] = []
    for number, some in enumerate(rounds(cases)):
        killed = Round(world.within(f"round{number}"), some)
        killed.kill()
        if must_die:
            flaws += [f"{m.case}: was not killed: {m.survived}" for m in killed.members if m.survived]
        flaws += killed.judge()
    return flaws
