"""A replay that dies at each line of the protocol: every dead letter is delivered once all the same.

It ends as a kill ends it, in this process; what comes next is a replay again, or a run and then a replay.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from engine.matrix.kill_destinations import PLACES, Place
from engine.matrix.kill_scenarios import CHECK
from kills import crashing, hooked
from support import DECODE, Lab, processor, queue, source

from conduit_dagster.recovery.kill_points import POINTS, REPLAY
from conduit_dagster.state.letter_view import STATES, Wanted, reasons
from conduit_dagster.state.overview import source_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KINDS = tuple(PLACES) if os.environ.get("CONDUIT_MATRIX") == "full" else ("postgres",)
COUNT, BAD = 12, (1, 4, 5, 9)
REFUSED = 7
"""Refused by the database itself, where the destination is one."""
UNREACHABLE = {
    "after-log", "before-log", "after-log-stage",  # no log of records
    "before-replan", "after-replan",  # a replay knows no window
}  # fmt: skip


@pytest.fixture
def database(request: pytest.FixtureRequest, kind: str) -> str | None:
    """A database of its own, where the destination needs one."""
    return request.getfixturevalue("postgres_server").create_database() if kind == "postgres" else None


class Replays:
    """Pipelines in one project, each with four dead letters or five."""

    def __init__(self, lab: Lab, kind: str, database: str | None) -> None:
        self.lab, self.kind = lab, kind
        self.place: Place = PLACES[kind](lab.root, database)
        self._number = 0
        lab.write("in.jsonl", [{"i": i} for i in range(COUNT)])

    def fresh(self) -> str:
        """One that has run, and whose file is mended by now."""
        self._number += 1
        name = f"p{self._number}"
        self.place.prepare(name, False, CHECK if self.kind == "postgres" else "")
        self._write(name, [processor("refuse", "error", f"after.i in {list(BAD)}", message="bad")])
        assert self.lab.run(name).error is None
        assert self._states(name) == Counter(open=len(self.letters))
        self._write(name, [])
        return name

    @property
    def letters(self) -> tuple[int, ...]:
        """The records that became dead letters."""
        return (*BAD, REFUSED) if self.kind == "postgres" else BAD

    def _write(self, name: str, processors: list[Any]) -> None:
        out = {"id": "out", "type": "destination", "plugin": self.place.plugin}
        self.lab.pipeline(
            id=name,
            connectors=[source(), {**out, "settings": self.place.settings(name, False)}],
            processors=[DECODE, *processors],
            delivery={"strategy": "exactly-once", "batch-size": 2},
            **{"dead-letter-queue": queue(path=f"./{name}-dead.jsonl")},
        )

    def judge(self, name: str, at: str) -> Iterator[str]:
        """What is wrong once everything has ended."""
        got, again = Counter(row["i"] for row in self.place.rows(name)), {REFUSED} & set(self.letters)
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
            found = reasons(store, name, Wanted(STATES))
        return Counter(state for row in found for state in [row["state"]] * row["letters"])


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_each_line(kind: str, lab: Lab, database: str | None) -> None:
    replays = Replays(lab, kind, database)
    name, passed = replays.fresh(), Counter[str]()
    with hooked(lambda point, pipeline: passed.update([point])):
        assert lab.replay(name)["replayed"] == len(BAD)
    flaws = list(replays.judge(name, "unharmed"))
    assert set(REPLAY) <= passed.keys()
    assert set(passed) <= {*POINTS, *REPLAY} - UNREACHABLE
    for number, point in enumerate(passed):
        # of two kills at a point one hits the first step of a replay, the other a later one
        flaws += _killed(lab, replays, point, min(passed[point], 1 + number % 2), runs_first=number % 3 == 0)
    assert not flaws, "\n".join(flaws)


def _killed(lab: Lab, replays: Replays, point: str, passage: int, runs_first: bool) -> Iterator[str]:
    name = replays.fresh()
    with crashing(point, passage):
        lab.replay(name)
    if runs_first:
        assert lab.run(name).error is None
    try:
        lab.replay(name)
    except Exception as error:  # noqa: BLE001  # all that was open may have been delivered by then
        assert getattr(error, "code", "") == "dead_letters.none", error
    assert lab.run(name).progress.read == 0  # the sources stand where they stood
    yield from replays.judge(name, f"{point}:{passage}{', a run' if runs_first else ''}")
