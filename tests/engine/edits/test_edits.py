"""Random edits of a pipeline, with a crash in almost any run, against an oracle (``oracle.py``).

``EDITS=200 EDITS_SEED=7`` runs two hundred examples and repeats them. One that fails is shortened, and printed as an
``Example`` to be put into a test of its own: ``check(Example(...))``.

What an example can do: append to one of two files, rotate it, switch the source between them, rewind it, or replay dead
letters; add and remove destinations, with and without ``start-from: log``; change what is dropped, nacked, and refused
by one destination; change ``delivery.log``. Runs crash at a kill point within this process.

What is left out:

- a rewind and a replay in one example: a letter of a record that is read twice stands for both readings;
- ``delivery.log: auto``, more than one source, ``fan-in``, compaction of the log, lost staging, a nack window;
- nacks at publishing, splits and direct destinations, two owners at a time, and other strategies;
- a destination that changes its path;
- the last delivery to a destination that was retired meanwhile: it may have come or not, or in part.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from engine.edits.editing import UNITS, Action, Editing
from engine.edits.oracle import FILTER, NACK, REFUSE
from postgres_server import PostgresServer
from pyspark.sql import SparkSession
from support import Lab

from conduit_dagster.recovery.kill_points import REPLAY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXAMPLES = int(os.environ.get("EDITS") or 7)
SEED = int(os.environ.get("EDITS_SEED") or random.randrange(10**6))
SHORTENING = int(os.environ.get("EDITS_SHORTEN") or 25)
"""How many shorter lists are tried once one has failed."""

POINTS = (
    "after-fence", "after-reack", "after-register", "before-log", "after-log-stage", "after-log", "before-plan",
    "after-plan", "before-stage", "after-stage", "before-prepare", "after-prepare", "before-publish", "mid-publish",
    "after-publish", "after-delivered", "before-done", "after-done", "after-ack",
)  # fmt: skip
"""Not ``after-lease``: a crash there leaves the lease with this process, which lives."""

OPEN = (
    "after-log", "after-plan", "after-stage", "after-prepare", "before-publish", "mid-publish", "after-publish",
    "before-done",
)  # fmt: skip
"""A crash there leaves a step open, or a log that is ahead: most of them are to be there."""


class Example(NamedTuple):
    """A pipeline and what happens to it."""

    batch: int
    log: str
    kinds: dict[str, str]
    actions: Sequence[Action]


Check = Callable[[Example], None]


@pytest.fixture
def check(tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest) -> Check:
    """Runs an example from its beginning, in a folder of its own."""
    count = 0

    def database() -> str:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return server.create_database()

    def run(example: Example) -> None:
        nonlocal count
        count += 1
        root = tmp_path / str(count)
        root.mkdir()
        editing = Editing(Lab(root, spark), database, example.batch, example.log, example.kinds)
        for action in example.actions:
            editing.do(action)
        editing.end()
        shutil.rmtree(root)

    return run


# -- examples -------------------------------------------------------------------------------------------------------

_EDITS = {"add": 6, "remove": 3, "log": 3, "switch": 3, "drop": 1, "nack": 2, "refuse": 2, "rotate": 2, "append": 1}
"""How often each comes."""


class _Maker:
    """Makes an example. It knows roughly what the pipeline is like by then, so that most edits change something."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._unit, self._mode = UNITS[0], dice.choice(["records", "records", "positions"])
        self._present = {"u"}

    def example(self) -> Example:
        """Another one at each call of a new maker."""
        dice, log = self._dice, self._mode
        kinds = {"u": "file", "v": dice.choice(["postgres", "delta", "file", "folder"]), "w": "file"}
        # the oracle does not follow dead letters of records that are read twice
        rewinds = dice.random() < 0.3
        edits = {**_EDITS, **({"rewind": 3} if rewinds else {"replay": 4})}
        actions: list[Action] = [(*edit, None) for edit in (self._nack(), self._refuse()) if dice.random() < 0.5]
        actions.append(("append", self._unit, dice.randint(4, 14), self._crash()))
        stories = [self._leaves] if rewinds else [self._leaves, self._missed, self._late]
        story = dice.choice(stories)() if dice.random() < 0.7 else iter(())
        others = iter(dice.choices([*edits], [*edits.values()], k=dice.randint(3, 7)))
        while (edit := self._next(story, others)) is not None:
            if dice.random() < 0.75:
                actions.append(("append", self._unit, dice.randint(1, 9), None))
            actions.append(edit)
        return Example(dice.randint(3, 5), log, kinds, actions)

    def _next(self, story: Iterator[Action], others: Iterator[str]) -> Action | None:
        """The story goes on, or some other edit comes between."""
        if self._dice.random() < 0.7 and (part := next(story, None)) is not None:
            return part
        if (name := next(others, None)) is not None:
            edit = getattr(self, f"_{name}", lambda: (name,))()
            return (*edit, self._crash(*(REPLAY if name == "replay" else ())))
        return next(story, None)

    # Edits that come to something only one after another, each with its crash.

    def _leaves(self) -> Iterator[Action]:
        """A destination leaves the file while a step is open, and comes back for what the log holds."""
        yield from self._second()
        name = self._dice.choice(sorted(self._present))
        yield "append", self._unit, self._dice.randint(4, 9), self._crash_within()
        yield *self._without(name), self._dice.choice([self._crash_within(), self._crash()])
        yield *self._with(name, True), self._crash()

    def _missed(self) -> Iterator[Action]:
        """Records that one destination refused; it leaves, and may come back before they are sent again."""
        yield from self._second()
        name = self._dice.choice(sorted(self._present))
        yield "refuse", name, self._dice.randrange(REFUSE), None
        yield "append", self._unit, self._dice.randint(6, 12), self._crash()
        yield *self._without(name), self._crash()
        yield *self._with(name, self._dice.random() < 0.7), self._dice.choice(["", None])
        yield "replay", self._crash(*REPLAY)

    def _late(self) -> Iterator[Action]:
        """Records that were nacked for all are sent again, to all but one that has them from the log."""
        if self._mode != "records":
            yield *self._log(), ""
        yield "nack", self._dice.randrange(NACK), None
        yield "append", self._unit, self._dice.randint(7, 12), self._crash()
        yield "nack", None, None
        if absent := sorted({*"uvw"} - self._present):
            yield *self._with(self._dice.choice(absent), True), self._crash()
        yield "replay", self._crash(*REPLAY)

    def _second(self) -> Iterator[Action]:
        if len(self._present) == 1:
            yield *self._add(), self._crash()

    def _crash(self, *more: str) -> str:
        dice = self._dice
        point = dice.choice([*POINTS, *OPEN, *OPEN, *more, *more])
        return f"{point}:{dice.choice([1, 1, 1, 2, 2, 3])}" if dice.random() < 0.7 else ""

    def _crash_within(self) -> str:
        return f"{self._dice.choice(OPEN)}:{self._dice.randint(1, 2)}"

    def _append(self) -> Action:
        return "append", self._dice.choice(UNITS), self._dice.randint(1, 9)

    def _rotate(self) -> Action:
        return "rotate", self._dice.choice([self._unit, *UNITS])

    def _drop(self) -> Action:
        return "drop", self._rest(FILTER)

    def _nack(self) -> Action:
        return "nack", self._rest(NACK)

    def _refuse(self) -> Action:
        return "refuse", self._dice.choice(sorted(self._present)), self._rest(REFUSE)

    def _rest(self, over: int) -> int | None:
        return self._dice.choice([None, *range(over)])

    def _switch(self) -> Action:
        self._unit = next(unit for unit in UNITS if unit != self._unit)
        return "switch", self._unit

    def _add(self) -> Action:
        return self._with(self._dice.choice(sorted({*"uvw"} - self._present) or ["u"]), self._dice.random() < 0.7)

    def _with(self, name: str, from_log: bool) -> Action:
        self._present.add(name)
        return "add", name, from_log, self._dice.random() < 0.5

    def _remove(self) -> Action:
        return self._without(self._dice.choice(sorted(self._present)))

    def _without(self, name: str) -> Action:
        if len(self._present) > 1:
            self._present.discard(name)
        return "remove", name

    def _log(self) -> Action:
        self._mode = "positions" if self._mode == "records" else "records"
        return "log", self._mode


# -- the test -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(EXAMPLES))
def test_edits_and_crashes(check: Check, number: int) -> None:
    """Whatever is edited and wherever a run is killed: everything comes once, and in order."""
    example = _Maker(random.Random(f"{SEED}:{number}")).example()
    print(f"EDITS_SEED={SEED}, example {number}: {example}")
    try:
        check(example)
    except Exception as error:
        shortest, error = _shortened(example, error, check)
        raise AssertionError(f"EDITS_SEED={SEED}, example {number}: {error!r}\n{_listed(shortest)}") from error


def _shortened(example: Example, error: Exception, check: Check) -> tuple[Example, Exception]:
    """A shorter list that fails as well, as far as the patience goes."""
    left, place = SHORTENING, 0
    while place < len(example.actions) and left:
        for shorter in _shorter(example, place):
            left -= 1
            try:
                check(shorter)
            except Exception as also:  # noqa: BLE001
                example, error = shorter, also
                break
        else:
            place += 1
    return example, error


def _shorter(example: Example, place: int) -> list[Example]:
    before, action, behind = example.actions[:place], example.actions[place], example.actions[place + 1 :]
    found = [example._replace(actions=[*before, *behind])]
    if action[-1]:
        found.append(example._replace(actions=[*before, (*action[:-1], ""), *behind]))
    return found


def _listed(example: Example) -> str:
    lines = [f"        {action!r}," for action in example.actions]
    return "\n".join([f"Example({example.batch}, {example.log!r}, {example.kinds!r}, [", *lines, "])"])
