"""``dlq replay`` that an outage, a kill or another command comes between: each letter is still sent exactly once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from lab.dlq_lab import BAD, build, delivered, done, failure, letters, mended, positions
from lab.kills import at, crashing
from lab.operating import error, result
from lab.scripted import Script, scripted
from lab.support import Lab

from conduit_dagster.engine.operate.letters import parse_id
from conduit_dagster.state.lease import LeaseLost

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


@pytest.mark.parametrize("point", ["after-replay", "after-prepare"])
def test_a_replay_that_was_frozen_until_a_run_had_ended_it_says_so(lab: Lab, point: str) -> None:
    """What it meets then, such as rows or staged files that are gone, is no error of its own."""
    build(lab)
    assert lab.run().error is None
    mended(lab)
    with pytest.raises(LeaseLost), at(point, lambda: lab.run(lease_seconds=0.3)):
        lab.replay()
    assert lab.run().error is None
    open_ = set(BAD) if point == "after-replay" else set[int]()
    assert delivered(lab) == Counter(set(range(20)) - open_)


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


def _killed(lab: Lab, run: Any) -> None:
    """Two of three letters are sent again by a replay that is killed once its step is prepared."""
    build(lab)
    assert lab.run().error is None
    mended(lab)
    chosen = [parse_id(one["id"])[1] for one in letters(run)][:2]
    with crashing("after-prepare"):
        lab.replay(keys=chosen)


def _replays(run: Any) -> list[tuple[int, int]]:
    """Numbers of letters delivered and failed of each replay that the history says is over."""
    events = result(run("pipelines", "history", "p", "--json"))["events"]
    return [(one["detail"]["letters"], one["detail"]["failed"]) for one in events if one["event"] == "replayed"]


def test_a_discard_leaves_the_letters_that_a_killed_replay_delivers(run, lab: Lab) -> None:
    """It said that none is discarded, as if that were done, and with --dry-run that all of them would be."""
    _killed(lab, run)
    dry = done(run, "discard", "p", "--note", "x", "--dry-run")
    assert (dry["letters"], dry["held"]) == (3, 2)
    ran = run("dlq", "discard", "p", "--note", "x")
    assert "1 dead letter is discarded, 2 stay in the prepared step of a replay" in ran.out
    for more in ((), ("--dry-run",)):
        refused = failure(run, "discard", "p", "--note", "x", *more)
        assert refused["code"] == "dead_letters.none" and "prepared step" in refused["message"]
    assert lab.run().error is None
    assert {one["state"] for one in letters(run, "--state", "all")} == {"discarded", "replayed"}


def test_what_a_killed_replay_had_prepared_counts_for_the_one_that_finishes_it(run, lab: Lab) -> None:
    """It told the other letters only, and the history never that the first replay ended."""
    _killed(lab, run)
    facts = done(run, "replay", "p")
    assert (facts["letters"], facts["replayed"], facts["failed"], facts["delivered"]) == (3, 3, 0, {"out": 3})
    assert _replays(run) == [(2, 0), (1, 0)]


def test_a_run_that_finishes_a_killed_replay_says_so_in_the_history(run, lab: Lab) -> None:
    _killed(lab, run)
    assert _replays(run) == [] and lab.run().error is None
    assert _replays(run) == [(2, 0)]
