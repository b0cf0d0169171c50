"""SIGKILL of a replay before and after each line of the protocol: every dead letter is delivered once all the same.

What comes next is a replay again, or a run and then a replay; a further run reads nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from engine.matrix.kill_destinations import PLACES, Place
from engine.matrix.kill_process import killed
from engine.matrix.kill_reach import passages
from engine.matrix.kill_round import World
from engine.matrix.kill_runs import Runs
from engine.matrix.kill_scenarios import CHECK
from lab.choice import WHOLE
from lab.kills import hooked
from lab.support import DECODE, Lab, processor, queue, source

from conduit_dagster.recovery.kill_points import POINTS, REPLAY
from conduit_dagster.state.dead_letters import STATES, DeadLetterQuery, reasons
from conduit_dagster.state.overview import source_rows

pytestmark = pytest.mark.slow

KINDS = tuple(PLACES) if WHOLE else ("file",)
COUNT, BAD = 12, (1, 4, 5, 9)
REFUSED = 7
"""Refused by the database itself, where the destination is one."""
NEVER = {
    "before-log", "after-log", "after-log-stage",  # no log of records
    "before-replan", "after-replan",  # a replay has no nack window
    "mid-index",  # no processor refuses what is replayed; tests/engine/test_letter_index.py has one that does
}  # fmt: skip
WITHOUT_REFUSALS = {
    "before-split", "after-split", "before-claim", "after-claim", "before-child", "after-child",
    "before-nack", "after-nack",
}  # fmt: skip


_PROCESSES = 2
"""A pipeline that stands still keeps its connections, and a server counts them."""


@dataclass(frozen=True)
class Death:
    """Of one pipeline's replay, and what follows."""

    pipeline: str
    at: str
    """``point:passage``"""
    runs_first: bool

    def __str__(self) -> str:
        return f"{self.at}{', a run' if self.runs_first else ''}"


class Replays:
    """Pipelines in one project with four or five dead letters each, whose files were fixed since."""

    def __init__(self, world: World, kind: str) -> None:
        self._world, self.kind = world, kind
        self.lab = Lab(world.folder, world.spark)
        self._place: Place = PLACES[kind](self.lab.root, world.database() if kind == "postgres" else None)
        self.lab.write("in.jsonl", [{"i": i} for i in range(COUNT)])

    @property
    def refuses(self) -> bool:
        """Whether the destination refuses a record, before and after."""
        return self.kind == "postgres"

    @property
    def unreachable(self) -> set[str]:
        """Points that its replays never pass."""
        return NEVER if self.refuses else NEVER | WITHOUT_REFUSALS

    @property
    def letters(self) -> tuple[int, ...]:
        """The records that became dead letters."""
        return (*BAD, REFUSED) if self.refuses else BAD

    def runs(self) -> Runs:
        """This process's."""
        return Runs(self.lab.root, self._world.spark)

    def make(self, names: Iterable[str]) -> None:
        """Run new ones, and fix their files."""
        names = list(names)
        for name in names:
            self._place.prepare(name, False, CHECK if self.refuses else "")
            self._write(name, [processor("refuse", "error", f"after.i in {list(BAD)}", message="bad")])
        with self.runs() as runs:
            assert not [result for result in runs.all(names).values() if result.error]
        for name in names:
            assert self._states(name) == Counter(open=len(self.letters))
            self._write(name, [])

    def _write(self, name: str, processors: list[Any]) -> None:
        out = {"id": "out", "type": "destination", "plugin": self._place.plugin}
        self.lab.pipeline(
            id=name,
            connectors=[source(), {**out, "settings": self._place.settings(name, False)}],
            processors=[DECODE, *processors],
            delivery={"strategy": "exactly-once", "batch-size": 2},
            **{"dead-letter-queue": queue(path=f"./{name}-dead.jsonl")},
        )

    def kill(self, deaths: list[Death], turn: str) -> None:
        """A process replays them all and dies with each at its place."""
        wanted = {death.pipeline: death.at for death in deaths}
        report = killed(self._world.connect, self.lab.root, wanted, turn, "replay")
        assert set(report["dead"]) == set(wanted), report["ended"]

    def end(self, deaths: list[Death]) -> None:
        """What an operator does next."""
        with self.runs() as runs:
            runs_first = [death.pipeline for death in deaths if death.runs_first]
            assert not [result for result in runs.all(runs_first).values() if result.error]
            names = [death.pipeline for death in deaths]
            runs.each(runs.replay, names)
            # the sources' positions are unchanged
            assert not {name: result for name, result in runs.all(names).items() if result.progress.read}

    def judge(self, name: str, at: object) -> Iterator[str]:
        """The problems once everything has ended."""
        got, again = Counter(row["i"] for row in self._place.rows(name)), {REFUSED} & set(self.letters)
        if got != Counter(set(range(COUNT)) - again):
            yield f"{at}: delivered {sorted(got.elements())}"
        wanted = Counter({"replayed": len(BAD), "open": len(again)})
        if (states := self._states(name)) != +wanted:
            yield f"{at}: letters are {states}"
        if (queued := len(self.lab.lines(f"{name}-dead.jsonl"))) != len(self.letters):
            yield f"{at}: the queue has {queued} letters"
        with self.lab.store() as store:
            if [(row["id"], row["records"]) for row in source_rows(store, name)] != [("in", COUNT)]:
                yield f"{at}: the sources stand elsewhere: {source_rows(store, name)}"

    def _states(self, name: str) -> Counter[str]:
        with self.lab.store() as store:
            found = reasons(store, name, DeadLetterQuery(STATES))
        return Counter(state for row in found for state in [row["state"]] * row["letters"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_killed_at_each_line(kind: str, world: World) -> None:
    replays, passed = Replays(world.within("project"), kind), Counter[str]()
    replays.make(["control"])
    with hooked(lambda point, pipeline: passed.update([point])), replays.runs() as runs:
        assert (runs.replay("control") or {})["replayed"] == len(BAD)
    flaws = list(replays.judge("control", "unharmed"))
    assert set(passed) == {*POINTS, *REPLAY} - replays.unreachable
    deaths = list(_deaths(passed))
    replays.make(death.pipeline for death in deaths)
    for turn in range(_PROCESSES):
        replays.kill(deaths[turn::_PROCESSES], str(turn))
    replays.end(deaths)
    flaws += [flaw for death in deaths for flaw in replays.judge(death.pipeline, death)]
    assert not flaws, "\n".join(flaws)


def _deaths(passed: Counter[str]) -> Iterator[Death]:
    """The letters of a replay lie in two steps: it dies in either."""
    places = [f"{point}:{passage}" for point, times in passed.items() for passage in passages(times, True)]
    for number, place in enumerate(places):
        yield Death(f"p{number}", place, number % 2 == 0)
