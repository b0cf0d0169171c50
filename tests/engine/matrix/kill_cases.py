"""One case of the kill matrix: a pipeline, and where it is killed, once or again and again."""

from __future__ import annotations

from dataclasses import dataclass

from engine.matrix.kill_scenarios import SCENARIOS, Scenario
from lab.choice import WHOLE


@dataclass(frozen=True)
class Combination:
    """A pipeline."""

    kind: str
    scenario: str
    strategy: str

    @property
    def plan(self) -> Scenario:
        """What it does."""
        return SCENARIOS[self.scenario]

    def __str__(self) -> str:
        return f"{self.kind}/{self.scenario}/{self.strategy}"


@dataclass(frozen=True)
class Case:
    """A pipeline, and the kills it goes through: ``point:passage`` in each of its runs, one after the other."""

    of: Combination
    kills: tuple[str, ...]

    def __str__(self) -> str:
        return "/".join((str(self.of), *self.kills))

    @staticmethod
    def parse(text: str) -> Case:
        """Parse a case as it was printed."""
        kind, scenario, strategy, *kills = text.split("/")
        return Case(Combination(kind, scenario, strategy), tuple(kills))


def combinations(kinds: list[str]) -> list[Combination]:
    """All pipelines of the matrix, for these kinds of destinations."""
    return [
        Combination(kind, scenario.name, strategy)
        for kind in kinds
        for scenario in SCENARIOS.values()
        for strategy in _strategies(scenario, kind)
    ]


_WITH_FILES_ONLY = ("merge", "cut", "join", "nacks")
"""In the choice. The scenario ``two`` has nacks as well."""
_FULL_ONLY = ("once", "query", "chain", "polled")

_LEFT_OUT = {
    "postgres": (*_WITH_FILES_ONLY, "streamed"),
    "file": (),
    "folder": (*_WITH_FILES_ONLY, "two"),
    "parquet": (*_WITH_FILES_ONLY, "two"),
}
"""A folder is the file destination's other layout, and Parquet files lie in one."""


def _strategies(scenario: Scenario, kind: str) -> tuple[str, ...]:
    """Those that are tried. By default a choice of six minutes; ``make matrix``: all.

    At-least-once and exactly-once take the same way through the engine where a destination keeps both.
    """
    left_out = (*_LEFT_OUT.get(kind, _WITH_FILES_ONLY), *_FULL_ONLY)
    if kind not in scenario.kinds or (not WHOLE and scenario.name in left_out):
        return ()
    if WHOLE or (scenario.name, kind) == ("one", "file"):
        return scenario.strategies
    both = kind == "file" and scenario.name == "two"
    return ("exactly-once", "at-most-once") if both else scenario.strategies[:1]
