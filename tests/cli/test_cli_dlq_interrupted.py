"""``dlq replay`` that an outage, a kill or another command comes between: each letter is still sent exactly once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from lab.dlq_lab import build, delivered, done, failure, letters, mended, positions
from lab.kills import at, crashing
from lab.operating import error
from lab.scripted import Script, scripted
from lab.support import Lab

pytestmark = pytest.mark.usefixtures("shared_session")


def test_an_outage_ends_a_replay_and_a_later_run_ends_its_step(run, lab: Lab, script: Script) -> None:
    build(lab, scripted())
    assert lab.run().error is None
    mended(lab, scripted())
    script.says(outage=[3])
    script.sent()
    assert run("dlq", "replay", "p", "--json").envelope["error"]["code"] == "file.error"
    script.says()
    script.sent()
    assert lab.run().error is None
    assert sorted(script.values()) == [3, 7, 8]
    assert letters(run) == [] and len(letters(run, "--state", "replayed")) == 3
    assert [row["id"] for row in positions(lab)] == ["in"]


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["run", "replay"])
def test_what_is_running_is_left_alone(run, lab: Lab, verb: str) -> None:
    """A replay during a run, and two replays at once: the second is told so, and changes nothing."""
    build(lab)
    assert lab.run().error is None
    mended(lab)
    lab.write("in.jsonl", [{"i": 20, "amount": 1}], mode="a")
    said: list[Any] = []

    def meanwhile() -> None:
        said.extend(failure(run, *words) for words in (("replay", "p"), ("discard", "p", "--note", "x")))

    with at("after-prepare", meanwhile):
        lab.replay() if verb == "replay" else lab.run()
    fix = "once that command has ended" if verb == "replay" else "stop it first"
    assert [found["code"] for found in said] == ["lease.held"] * 2 and fix in said[0]["fix"]
    if verb == "run":
        assert len(letters(run)) == 3 and done(run, "replay", "p")["replayed"] == 3
    assert lab.run().error is None
    assert letters(run) == [] and delivered(lab) == Counter(range(21))


@pytest.mark.parametrize("point", ["mid-replay", "after-replay"])
def test_a_replay_that_was_killed_is_not_in_the_way_of_a_discard(run, lab: Lab, point: str) -> None:
    build(lab)
    assert lab.run().error is None
    mended(lab)
    with crashing(point):
        lab.replay()
    assert done(run, "discard", "p", "--note", "given up")["discarded"] == 3
    assert letters(run) == [] and [row["id"] for row in positions(lab)] == ["in"]


def test_a_replay_that_was_killed_while_it_took_its_letters_is_repeated(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    mended(lab)
    with crashing("mid-replay"):
        lab.replay()
    assert done(run, "replay", "p")["replayed"] == 3
    assert letters(run) == [] and delivered(lab) == Counter(range(20))


def test_a_step_of_a_replay_is_not_marked(run, lab: Lab, script: Script) -> None:
    build(lab, scripted())
    assert lab.run().error is None
    mended(lab, scripted())
    with crashing("after-prepare"):
        lab.replay()
    assert error(run("offsets", "mark", "p", "out", "0", "--json"))["code"] == "offsets.replay"
    facts = done(run, "replay", "p")
    assert (facts["replayed"], facts["failed"]) == (3, 0)
    assert letters(run) == [] and Counter(script.values()) == Counter(range(20))
