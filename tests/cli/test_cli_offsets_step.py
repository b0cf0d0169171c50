"""``offsets step``: one record at a time (CASES.md, C10)."""

from __future__ import annotations

from typing import Any

import pytest
from lab.operating import NAMESPACE, after_bulk_error, build, code_of, error, fails_at_14, offsets, result, snapshot
from lab.scripted import Script, scripted
from lab.support import DECODE, Crashes, Lab, processor

pytestmark = pytest.mark.usefixtures("shared_session")


def test_c10_a_step_sends_exactly_one_record(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script)
    facts = result(run("offsets", "step", "p", "--json"))
    assert (facts["did"], facts["offset"], facts["handled"], facts["records"]) == ("sent", 9, 1, 7)
    assert script.sent() == [[9]]
    assert offsets(lab)["out"] == 9
    assert "got offset 10 of in" in run("offsets", "step", "p", "out").out
    assert script.sent() == [[10]]
    script.says()
    assert lab.run().error is None
    assert script.sent() == [[11], [12], [13], [14], [15]]


def test_a_step_that_fails_shows_the_error_and_moves_nothing(run, lab: Lab, script: Script) -> None:
    fails_at_14(lab, script)
    before = snapshot(lab)
    failure = error(run("offsets", "step", "p", "--json"))
    assert (failure["code"], failure["node"]) == ("delivery.record_failed", "p:out")
    assert "offset 14" in failure["place"]
    assert "offsets mark" in failure["fix"]
    assert script.sent() == [[14]]
    assert snapshot(lab) == before


def test_a_delivery_that_was_never_split_is_sent_one_by_one_from_then_on(run, lab: Lab, script: Script) -> None:
    build(lab, 4)
    script.says(outage=[0])
    assert code_of(lab.run()) == "file.error"
    script.says()
    script.sent()
    assert result(run("offsets", "step", "p", "--json"))["offset"] == 0
    assert script.sent() == [[0]]
    assert lab.run().error is None
    assert script.sent() == [[1], [2], [3]]


def test_the_last_record_ends_the_step(run, lab: Lab, script: Script) -> None:
    fails_at_14(lab, script)
    script.says()
    assert result(run("offsets", "step", "p", "--json"))["step_done"] is False
    facts = result(run("offsets", "step", "p", "--json"))
    assert (facts["offset"], facts["delivery_done"], facts["step_done"]) == (15, True, True)
    assert offsets(lab) == {"out": 15, "dead_letters": 15}
    assert error(run("offsets", "step", "p", "--json"))["code"] == "offsets.no_open_step"
    script.sent()
    assert lab.run().progress.read == 0
    assert script.sent() == []


@pytest.mark.parametrize("is_split", [False, True])
def test_a_delivery_whose_end_was_not_stored_before_a_kill_is_delivered(
    run, lab: Lab, script: Script, crashes: Crashes, is_split: bool
) -> None:
    if is_split:
        after_bulk_error(lab, script)
        script.says()
    else:
        build(lab, 16)
    crashes(lab, "after-publish")
    script.sent()
    for verb in (("step", "p", "--dry-run"), ("mark", "p", "out", "15", "--dry-run"), ("step", "p")):
        assert result(run("offsets", *verb, "--json"))["did"] == "held"
    assert error(run("offsets", "step", "p", "--json"))["code"] == "offsets.nothing_open"
    assert offsets(lab)["out"] == 15
    assert lab.run().error is None
    assert script.sent() == []
    [consumer] = [one for one in result(run("offsets", "list", "p", "--json"))["consumers"] if one["id"] == "out"]
    assert consumer["delivered"] == 16


def test_the_other_destination_keeps_the_step_open(run, lab: Lab, script: Script) -> None:
    build(lab, 1, scripted("a"), scripted("b"))
    for name in "ab":
        script.says(name, outage=[0])
    assert code_of(lab.run()) == "file.error"
    for name in "ab":
        script.says(name)
        script.sent(name)
    assert error(run("offsets", "step", "p", "--json"))["code"] == "usage.which_consumer"
    facts = result(run("offsets", "step", "p", "a", "--json"))
    assert (facts["delivery_done"], facts["step_done"]) == (True, False)
    assert lab.run().error is None
    assert (script.sent("a"), script.sent("b")) == ([[0]], [[0]])


def test_a_record_that_is_refused_is_a_dead_letter(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script)
    script.says(refuse=[9])
    assert result(run("offsets", "step", "p", "--json"))["did"] == "refused"
    assert [after["i"] for _, _, after in lab.letters()] == [9]
    assert offsets(lab)["out"] == 9


def test_a_dry_run_of_a_step_sends_nothing(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script)
    before = snapshot(lab)
    facts = result(run("offsets", "step", "p", "--dry-run", "--json"))
    assert (facts["did"], facts["offset"]) == ("would send", 9)
    assert script.sent() == []
    assert snapshot(lab) == before


def test_records_that_were_acked_out_of_order_are_passed(run, lab: Lab, script: Script) -> None:
    """C13: in B record 3 is missing; all other records of all namespaces are acked."""
    build(lab, 8, processors=[DECODE, NAMESPACE])
    script.says(acks=[[v, "only"] for v in (0, 1, 2, 4, 5)])
    assert code_of(lab.run()) == "delivery.unacked"
    script.says()
    script.sent()
    sent = [result(run("offsets", "step", "p", "--json"))["offset"] for _ in range(3)]
    assert sent == [3, 6, 7]
    assert script.sent() == [[3], [6], [7]]


def test_a_record_without_an_ack_ends_the_command_and_moves_nothing(run, lab: Lab, script: Script) -> None:
    """It was sent again without end."""
    fails_at_14(lab, script)
    script.says(acks=[])
    assert error(run("offsets", "step", "p", "--json"))["code"] == "delivery.unacked"
    assert (script.sent(), offsets(lab)["out"]) == ([[14]], 13)
    script.says()
    assert result(run("offsets", "step", "p", "--json"))["did"] == "sent"


def test_dead_letters_of_the_step_come_first(run, lab: Lab, script: Script, crashes: Any) -> None:
    build(lab, 3, processors=[DECODE, processor("no", "error", "after.i == 1", message="one")])
    crashes(lab, "before-publish")
    assert error(run("offsets", "step", "p", "--json"))["code"] == "offsets.dead_letters_first"
