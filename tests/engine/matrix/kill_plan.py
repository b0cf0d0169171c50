"""The cases of the kill matrix for a group of pipelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from engine.matrix.kill_cases import Case, Combination
from engine.matrix.kill_destinations import SECOND
from engine.matrix.kill_reach import passages, reachable
from engine.matrix.kill_round import Round, World
from engine.matrix.kill_scenarios import SCENARIOS
from lab.choice import WHOLE

_MOST = 75
"""Cases in one process."""
_OF_A_TABLE = 2
"""Connections of a source that reads a table: one to ask, and one that holds the snapshot of its copy."""
_CONNECTIONS = 72
"""A pipeline that stands still keeps its connections, and a server counts them."""


def kills(of: Combination, passed: Counter[str]) -> list[Case]:
    """A pipeline killed at each of its points, at the passages that :func:`passages` chooses.

    By default every third case of a scenario whose point the scenario ``one`` passes too: that is killed at each of
    its points.
    """
    every = [
        Case(of, (f"{point}:{n}",))
        for point in reachable(of.plan, of.strategy)
        for n in passages(passed[point], of.plan.end is not None)
    ]
    if WHOLE or of.scenario == "one":
        return every
    of_one = reachable(SCENARIOS["one"], of.strategy)
    shared = [case for case in every if _point(case) in of_one]
    # so that scenarios are killed at different ones
    chosen = shared[sum(map(ord, of.scenario)) % 3 :: 3]
    return [case for case in every if case in chosen or case not in shared]


def _point(case: Case) -> str:
    return case.kills[0].partition(":")[0]


def rounds(cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
    """As many as fit into one process, in processes of about the same size."""
    connections = sum(_connections(case.of) for case in cases)
    count = max(-(-len(cases) // _MOST), -(-connections // _CONNECTIONS))
    for number in range(count):
        # every count-th, so that those with connections are spread evenly
        yield cases[number::count]


def _connections(of: Combination) -> int:
    """Of a pipeline's destinations and its dead-letter queue."""
    kinds = [of.kind, of.kind, *([SECOND[of.kind]] if of.plan.second else [])]
    return kinds.count("postgres") + (_OF_A_TABLE if of.plan.table else 0)


def outcome(world: World, cases: Sequence[Case], must_die: bool = True) -> list[str]:
    """Kill all of them and judge; return a list of problems, each with its case."""
    flaws: list[str] = []
    for number, some in enumerate(rounds(cases)):
        killed = Round(world.within(f"round{number}"), some)
        killed.kill()
        if must_die:
            flaws += [f"{m.case}: was not killed: {m.survived}" for m in killed.members if m.survived]
        flaws += killed.judge()
    return flaws
