"""Random edits of a pipeline, with a crash in almost any run, against an oracle (``oracle.py``): a state machine.

``EDITS=200 EDITS_SEED=7`` runs two hundred examples. A seed repeats them in a run of the same test files only, because
Hypothesis takes constants from the modules that are loaded. One that fails is shortened, and printed as calls of the
rules below: they may be put into a test of their own (``EditedPipeline(make)``, the calls, ``teardown()``).

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine.edits.editing import UNITS, Action, Editing
from engine.edits.oracle import FILTER, NACK, REFUSE
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from lab.kept import leave_at
from lab.postgres_server import PostgresServer
from lab.support import Lab
from pyspark.sql import SparkSession

from conduit_dagster.recovery.kill_points import REPLAY

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("EDITS") or 6)
SEED = int(os.environ.get("EDITS_SEED") or random.randrange(10**6))
STEPS = 8
"""Edits of an example, of which some are several."""

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


def crashes(*points: str) -> st.SearchStrategy[str]:
    """Where the run behind an action crashes, and at which passage of it; nowhere in three of ten cases."""
    at = [f"{point}:{passage}" for point in points for passage in (1, 1, 1, 2, 2, 3)]
    return st.sampled_from([*[""] * (len(at) * 3 // 7), *at])


def rest(over: int) -> st.SearchStrategy[int | None]:
    """Which records are affected: those with this remainder when divided by ``over``; None: none."""
    return st.none() | st.integers(0, over - 1)


ANYWHERE = crashes(*POINTS, *OPEN, *OPEN)
WITHIN = st.sampled_from([f"{point}:{passage}" for passage in (1, 2) for point in OPEN])
REPLAYED = crashes(*POINTS, *OPEN, *OPEN, *REPLAY, *REPLAY)
FROM_LOG = st.sampled_from([True, True, False])
MORE = st.sampled_from([0, 0, *range(1, 10)])
"""How many records are appended to the source's file right before an edit."""
PICK = st.integers(0, 5)
"""Which of the destinations that are there, or are not."""

Make = Callable[[int, str, dict[str, str]], Editing]
"""From batch size, ``delivery.log`` and kinds of destinations by id."""


def _rewinds(machine: EditedPipeline) -> bool:
    return machine.rewinds


def _replays(machine: EditedPipeline) -> bool:
    return not machine.rewinds


class EditedPipeline(RuleBasedStateMachine):
    """One pipeline, from its first run until everything must have arrived."""

    rewinds = False

    def __init__(self, make: Make) -> None:
        super().__init__()
        self._make = make
        self._editing: Editing | None = None
        self._failed = False

    @initialize(
        batch=st.integers(3, 5),
        log=st.sampled_from(["records", "records", "positions"]),
        kind=st.sampled_from(["file", "folder", "postgres", "delta"]),
        rewinds=st.sampled_from([False, False, True]),
        nacked=rest(NACK),
        refused=rest(REFUSE),
        count=st.integers(4, 14),
        crash=ANYWHERE,
    )
    def begin(
        self,
        batch: int,
        log: str,
        kind: str,
        rewinds: bool,
        nacked: int | None,
        refused: int | None,
        count: int,
        crash: str,
    ) -> None:
        """``rewinds``: it is rewound, and nothing is replayed; the oracle follows no letters of records read twice."""
        self.rewinds = rewinds
        self._kinds = {"u": "file", "v": kind, "w": "file"}
        self._editing = self._make(batch, log, self._kinds)
        self._do("nack", nacked, crash=None)
        self._do("refuse", "u", refused, crash=None)
        self._append(count, crash)

    # -- single edits, each behind some more records -------------------------------------------------------------

    @rule(unit=st.sampled_from(UNITS), more=MORE, crash=ANYWHERE)
    def append(self, unit: str, more: int, crash: str) -> None:
        self._do("append", unit, more + 1, crash=crash)

    @rule(more=MORE, unit=st.sampled_from(UNITS), crash=ANYWHERE)
    def rotate(self, more: int, unit: str, crash: str) -> None:
        self._edit(more, "rotate", unit, crash=crash)

    @rule(
        more=MORE,
        who=st.sampled_from(["drop", "nack", "refuse", "refuse"]),
        pick=PICK,
        which=rest(min(FILTER, NACK, REFUSE)),
        crash=ANYWHERE,
    )
    def take_fewer(self, more: int, who: str, pick: int, which: int | None, crash: str) -> None:
        """Others are dropped, or nacked for all, or refused by one destination."""
        self._edit(more, who, *([self._present(pick)] if who == "refuse" else []), which, crash=crash)

    @rule(more=MORE, crash=ANYWHERE)
    def switch(self, more: int, crash: str) -> None:
        self._edit(more, "switch", next(unit for unit in UNITS if unit != self._config.unit), crash=crash)

    @rule(more=MORE, crash=ANYWHERE)
    def change_log(self, more: int, crash: str) -> None:
        self._edit(more, "log", "positions" if self._config.log == "records" else "records", crash=crash)

    @rule(more=MORE, pick=PICK, from_log=FROM_LOG, is_back=st.booleans(), crash=ANYWHERE)
    def add(self, more: int, pick: int, from_log: bool, is_back: bool, crash: str) -> None:
        self._edit(more, "add", self._absent(pick), from_log, is_back, crash=crash)

    @rule(more=MORE, pick=PICK, crash=ANYWHERE)
    def remove(self, more: int, pick: int, crash: str) -> None:
        self._edit(more, "remove", self._present(pick), crash=crash)

    @precondition(_rewinds)
    @rule(more=MORE, crash=ANYWHERE)
    def rewind(self, more: int, crash: str) -> None:
        self._edit(more, "rewind", crash=crash)

    @precondition(_replays)
    @rule(more=MORE, crash=REPLAYED)
    def replay(self, more: int, crash: str) -> None:
        self._edit(more, "replay", crash=crash)

    # -- edits that come to something only one after another ------------------------------------------------------

    @rule(
        more=st.integers(4, 9),
        pick=PICK,
        first=WITHIN,
        second=WITHIN | ANYWHERE,
        is_back=st.booleans(),
        crash=ANYWHERE,
    )
    def leave(self, more: int, pick: int, first: str, second: str, is_back: bool, crash: str) -> None:
        """A destination leaves the file while a step is open, and returns for what the log holds."""
        self._use_log()
        self._have_two()
        name = self._present(pick)
        self._append(more, first)
        self._do("remove", name, crash=second)
        self._do("add", name, True, is_back, crash=crash)

    @precondition(_replays)
    @rule(
        more=st.integers(6, 12),
        pick=PICK,
        refused=st.integers(0, REFUSE - 1),
        first=ANYWHERE,
        second=ANYWHERE,
        from_log=st.booleans(),
        is_back=st.booleans(),
        crash=REPLAYED,
    )
    def miss(
        self,
        more: int,
        pick: int,
        refused: int,
        first: str,
        second: str,
        from_log: bool,
        is_back: bool,
        crash: str,
    ) -> None:
        """Records that one destination refused; it leaves, and may return before they are sent again."""
        self._have_two()
        name = self._present(pick)
        self._do("refuse", name, refused, crash=None)
        self._append(more, first)
        self._do("remove", name, crash=second)
        self._do("add", name, from_log, is_back, crash="")
        self._do("replay", crash=crash)

    @precondition(_replays)
    @rule(more=st.integers(7, 12), pick=PICK, nacked=st.integers(0, NACK - 1), first=ANYWHERE, crash=REPLAYED)
    def come_late(self, more: int, pick: int, nacked: int, first: str, crash: str) -> None:
        """Records that were nacked for all are sent again, to all except one that has them from the log."""
        self._use_log()
        self._do("nack", nacked, crash=None)
        self._append(more, first)
        self._do("nack", None, crash=None)
        self._do("add", self._absent(pick), True, False, crash="")
        self._do("replay", crash=crash)

    # -- how ------------------------------------------------------------------------------------------------------

    @property
    def _config(self) -> Any:
        assert self._editing is not None
        return self._editing.config

    def _present(self, pick: int) -> str:
        names = sorted(self._config.outputs)
        return names[pick % len(names)]

    def _absent(self, pick: int) -> str:
        """One that exists if none is absent: adding it does nothing."""
        names = sorted(self._kinds.keys() - self._config.outputs.keys()) or ["u"]
        return names[pick % len(names)]

    def _use_log(self) -> None:
        if self._config.log != "records":
            self._do("log", "records", crash="")

    def _have_two(self) -> None:
        if len(self._config.outputs) == 1:
            self._do("add", self._absent(0), False, False, crash="")

    def _append(self, count: int, crash: str | None) -> None:
        self._do("append", self._config.unit, count, crash=crash)

    def _edit(self, more: int, *words: Any, crash: str) -> None:
        if more:
            self._append(more, None)
        self._do(*words, crash=crash)

    def _do(self, *words: Any, crash: str | None) -> None:
        assert self._editing is not None
        action: Action = (*words, crash)
        self._failed = True
        self._editing.do(action)
        self._failed = False

    def teardown(self) -> None:
        """The remains of a failed run are not checked."""
        if self._editing is not None and not self._failed:
            self._editing.end()


@pytest.fixture
def make(tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest) -> Make:
    """A pipeline in its own folder; the previous one is removed."""
    count = 0

    def database() -> str:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return server.create_database()

    def new(batch: int, log: str, kinds: dict[str, str]) -> Editing:
        nonlocal count
        shutil.rmtree(tmp_path / str(count), ignore_errors=True)
        count += 1
        root = tmp_path / str(count)
        root.mkdir()
        return Editing(Lab(root, spark), database, batch, log, kinds)

    return new


def _explore(make: Make) -> None:
    print(f"EDITS={EXAMPLES} EDITS_SEED={SEED}")

    class Machine(EditedPipeline):
        def __init__(self) -> None:
            super().__init__(make)

    how = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,  # a seed gives the same examples wherever it runs
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
    run_state_machine_as_test(seed(SEED)(Machine), settings=how)


def test_edits_and_crashes(make: Make) -> None:
    """Whatever is edited and wherever a run is killed: everything arrives once, and in order."""
    _explore(make)


def test_edits_of_folders(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, from folders: each completely read file leaves the position at once."""
    leave_at(monkeypatch, 1)
    monkeypatch.setattr(Editing, "folders", True)
    _explore(make)


def test_a_rewind_ends_what_a_killed_run_left_for_one(make: Make) -> None:
    """Found by the machine above, with a log from whose beginning all destinations are sent everything again."""
    state = EditedPipeline(make)
    state.begin(
        batch=4, kind="file", log="records", rewinds=True, nacked=None, refused=None, count=13, crash="after-log:2"
    )
    state.leave(more=4, pick=0, first="after-log:1", second="after-log:1", is_back=False, crash="after-plan:1")
    state.rewind(more=0, crash="")
    state.teardown()


def test_a_rewound_log_is_read_under_a_new_generation_where_its_source_is_set_back(make: Make) -> None:
    """Found by the machine above: the generation of earlier data has delivered the offsets that come again."""
    state = EditedPipeline(make)
    state.begin(
        batch=5, kind="file", log="records", rewinds=True, nacked=None, refused=None, count=9, crash="after-plan:1"
    )
    state.switch(more=0, crash="")
    state.switch(more=0, crash="")
    state.rewind(more=0, crash="before-publish:1")
    state.switch(more=4, crash="")
    state.teardown()
