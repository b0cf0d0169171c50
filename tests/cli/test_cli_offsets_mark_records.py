"""``offsets mark --offset``: single records, in any order (reference 4, CASES.md C1 and C12)."""

from __future__ import annotations

import pytest
from lab.operating import after_bulk_error, code_of, error, events, fails_at_14, offsets, result, snapshot
from lab.scripted import Script
from lab.support import Lab

pytestmark = pytest.mark.usefixtures("shared_session")


def delivered(lab: Lab) -> int:
    """The state store's count for the destination, out of sixteen records."""
    with lab.store() as database:
        from conduit_dagster.state.overview import consumer_rows

        return next(row["delivered"] for row in consumer_rows(database, "p") if row["id"] == "out")


def test_records_behind_the_offset_are_marked_out_of_order_and_passed_over(run, lab: Lab, script: Script) -> None:
    """c0 is at 8, and 12, 14 and 10 are marked: it stays there, and a run sends only the others."""
    after_bulk_error(lab, script)
    facts = result(run("offsets", "mark", "p", "out", "--offset", "12", "--offset", "14", "--json"))
    assert (facts["did"], facts["offsets"], facts["next"], facts["step_done"]) == ("marked", [12, 14], 9, False)
    assert result(run("offsets", "mark", "p", "out", "--offset", "10", "--json"))["offsets"] == [10]
    assert offsets(lab)["out"] == 8
    (row,) = [row for row in result(run("offsets", "list", "p", "--json"))["consumers"] if row["id"] == "out"]
    assert (row["open"]["handled"], row["open"]["marked"]) == (0, 3)
    script.says()
    ran = lab.run()
    assert ran.error is None
    assert script.sent() == [[9], [11], [13], [15]]
    assert offsets(lab) == {"out": 15, "dead_letters": 15}
    assert delivered(lab) == 13
    assert ran.progress.delivered["out"] == 4
    assert [event["offsets"] for event in events(lab, "marked")] == ["10", "12, 14"]


def test_the_offset_moves_over_the_contiguous_run_only(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script)
    run("offsets", "mark", "p", "out", "--offset", "11-12")
    assert offsets(lab)["out"] == 8
    facts = result(run("offsets", "mark", "p", "out", "--offset", "9-10", "--json"))
    assert (facts["next"], offsets(lab)["out"]) == (13, 12)


def test_a_run_that_stops_between_marked_records_goes_on_there(run, lab: Lab, script: Script) -> None:
    """Marks survive a failing run, whose offset is before the failing record."""
    after_bulk_error(lab, script)
    run("offsets", "mark", "p", "out", "--offset", "10-11", "--offset", "15")
    script.says(outage=[13])
    assert lab.run().error is not None
    assert script.sent() == [[9], [12], [13]]
    assert offsets(lab)["out"] == 12
    script.says()
    assert lab.run().error is None
    assert script.sent() == [[13], [14]]
    assert delivered(lab) == 13


def test_a_delivery_that_was_never_split_is_sent_in_bulk_around_the_marked_record(
    run, lab: Lab, script: Script
) -> None:
    after_bulk_error(lab, script, delivery={"redelivery": "bisect"})
    run("offsets", "mark", "p", "out", "--offset", "14")
    script.says()
    assert lab.run().error is None
    assert [value for batch in script.sent() for value in batch] == [9, 10, 11, 12, 13, 15]


@pytest.mark.parametrize("log", ["records", "positions"])
def test_marking_every_record_that_is_left_ends_the_step(run, lab: Lab, script: Script, log: str) -> None:
    fails_at_14(lab, script, delivery={"log": log})
    assert result(run("offsets", "mark", "p", "out", "--offset", "15", "--json"))["delivery_done"] is False
    facts = result(run("offsets", "mark", "p", "out", "--offset", "14", "--json"))
    assert (facts["next"], facts["delivery_done"], facts["step_done"]) == (None, True, True)
    assert delivered(lab) == 14
    assert lab.run().progress.read == 0
    assert script.sent() == []


def test_up_to_an_offset_passes_those_behind_it_that_are_marked(run, lab: Lab, script: Script) -> None:
    fails_at_14(lab, script)
    run("offsets", "mark", "p", "out", "--offset", "15")
    assert result(run("offsets", "mark", "p", "out", "14", "--json"))["step_done"] is True
    assert delivered(lab) == 14


def test_a_step_sends_the_next_record_that_is_not_marked(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script)
    run("offsets", "mark", "p", "out", "--offset", "10")
    script.says()
    assert [result(run("offsets", "step", "p", "--json"))["offset"] for _ in range(2)] == [9, 11]
    assert result(run("offsets", "step", "p", "--json"))["did"] == "sent"
    assert script.sent() == [[9], [11], [12]]


def test_what_is_handled_already_stays_as_it_is(run, lab: Lab, script: Script) -> None:
    fails_at_14(lab, script)
    before = snapshot(lab)
    facts = result(run("offsets", "mark", "p", "out", "--offset", "9-13", "--json"))
    assert (facts["did"], facts["offsets"]) == ("nothing", [])
    facts = result(run("offsets", "mark", "p", "out", "--offset", "9-14", "--dry-run", "--json"))
    assert (facts["did"], facts["offsets"]) == ("marked", [14])
    assert snapshot(lab) == before


@pytest.mark.parametrize(("wanted", "code"), [("8", "offsets.before_step"), ("15-16", "offsets.beyond_step")])
def test_an_offset_outside_of_the_step_is_refused(run, lab: Lab, script: Script, wanted: str, code: str) -> None:
    after_bulk_error(lab, script)
    before = snapshot(lab)
    assert error(run("offsets", "mark", "p", "out", "--offset", wanted, "--json"))["code"] == code
    assert snapshot(lab) == before


@pytest.mark.parametrize(
    "words", [(), ("14", "--offset", "14"), ("--offset", "14", "--force"), ("--offset", "x"), ("--offset", "11-9")]
)
def test_what_names_no_record_or_two_ways_is_refused(run, lab: Lab, script: Script, words: tuple[str, ...]) -> None:
    assert error(run("offsets", "mark", "p", "out", *words, "--json"))["code"] == "usage.offset"


def test_going_back_keeps_the_marks_that_lie_ahead(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script)
    assert code_of(lab.run()) == "delivery.record_failed"
    script.sent()
    run("offsets", "mark", "p", "out", "--offset", "15")
    assert result(run("offsets", "mark", "p", "out", "11", "--force", "--json"))["offsets"] == [12, 13]
    script.says()
    assert lab.run().error is None
    assert script.sent() == [[12], [13], [14]]
