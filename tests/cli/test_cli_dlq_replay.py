"""``dlq replay``: dead letters are sent again, each exactly once."""

from __future__ import annotations

from collections import Counter

import pytest
from lab.dlq_lab import BAD, CONVERT, build, delivered, done, failed_again, failure, letters, mended, positions
from lab.kills import crashing
from lab.operating import events, offsets, snapshot
from lab.scripted import Script, scripted
from lab.support import DECODE, Lab, destination, processor, queue, source

pytestmark = pytest.mark.usefixtures("shared_session")

TWICE = '''
from conduit_dagster.sdk import Processor
from conduit_dagster.record import copy


class Twice(Processor):
    """Each record, and one whose number is a hundred more."""

    name = "twice"

    def process(self, record):
        other = copy(record)
        other.after = {**record.after, "i": record.after["i"] + 100}
        return [record, other]
'''


@pytest.mark.parametrize("log", ["positions", "records"])
def test_a_replay_after_the_pipeline_was_mended(run, lab: Lab, log: str) -> None:
    build(lab, delivery={"log": log})
    assert lab.run().error is None
    before, queued, moved = positions(lab), lab.lines("dead.jsonl"), offsets(lab)
    mended(lab, delivery={"log": log})
    facts = done(run, "replay", "p")
    assert (facts["letters"], facts["replayed"], facts["failed"]) == (3, 3, 0)
    assert delivered(lab) == Counter(range(20))
    assert [row for row in lab.documents("out.jsonl") if row["i"] == 3] == [{"i": 3, "amount": 30, "tag": "t3"}]
    assert letters(run) == [] and len(letters(run, "--state", "replayed")) == 3
    assert (positions(lab), lab.lines("dead.jsonl"), offsets(lab)) == (before, queued, moved)
    assert events(lab, "replayed")[0]["letters"] == 3
    assert failure(run, "replay", "p")["code"] == "dead_letters.none"
    assert lab.run().progress.read == 0
    assert delivered(lab) == Counter(range(20))


def test_what_fails_again_stays_open_with_its_new_reason(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    broken = processor("broken", "error", condition="after.i == 7", message="not today")
    fix = processor("fix", "field.set", field=".Payload.After.amount", expression="1")
    lab.pipeline(
        connectors=[source(), destination()],
        processors=[DECODE, fix, broken, CONVERT],
        **{"dead-letter-queue": queue()},
    )
    facts = failed_again(run)
    assert (facts["replayed"], facts["failed"]) == (2, 1)
    assert [(row["node"], row["letters"]) for row in facts["failed_by"]] == [("p:broken", 1)]
    [left] = letters(run)
    assert (left["offset"], left["node"], left["attempt"]) == (7, "p:broken", 2)
    assert "not today" in left["message"]
    assert len(lab.lines("dead.jsonl")) == 3  # it was there before
    assert delivered(lab) == Counter(set(range(20)) - {7})
    mended(lab)
    assert done(run, "replay", "p")["replayed"] == 1
    assert delivered(lab) == Counter(range(20))


def test_each_reason_for_which_letters_failed_again_is_told(run, lab: Lab) -> None:
    """A step reports a few of its letters only."""
    texts = [b"no document", *(b'{"amount": "many"}' for _ in range(40))]
    build(lab)
    (lab.root / "in.jsonl").write_bytes(b"".join(text + b"\n" for text in texts))
    assert lab.run().error is None
    told = {(row["node"], row["letters"]) for row in failed_again(run)["failed_by"]}
    assert told == {("p:decode", 1), ("p:convert", 40)}
    text = run("dlq", "replay", "p").err
    assert "p:convert: field.convert.invalid: " in text and "p:decode: json.decode.invalid" in text


def test_from_the_node_it_goes_on_as_it_was(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    # its tag is not recomputed: changes made before the node are kept
    tag = processor("tag", "field.set", field=".Payload.After.tag", expression="'other'")
    convert = processor("convert", "field.set", field=".Payload.After.amount", expression="5")
    lab.pipeline(
        connectors=[source(), destination()], processors=[DECODE, tag, convert], **{"dead-letter-queue": queue()}
    )
    assert done(run, "replay", "p", "--from", "node")["replayed"] == 3
    assert [row["tag"] for row in lab.documents("out.jsonl")[-3:]] == ["t3", "t7", "t8"]
    assert delivered(lab) == Counter(range(20))


def test_a_node_that_is_gone_leaves_them_open(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    build(lab, processors=[DECODE])
    facts = failed_again(run, "--from", "node")
    assert (facts["replayed"], facts["failed"]) == (0, 3)
    assert {row["code"] for row in letters(run)} == {"dead_letters.no_node"}
    assert done(run, "replay", "p")["replayed"] == 3


def test_edits_come_first(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    edit = ".Payload.After.amount=after.i * 100"
    facts = done(run, "replay", "p", "--from", "node", "--set", edit, "--where", "after.i > 5")
    assert facts["replayed"] == 2
    assert [row["amount"] for row in lab.documents("out.jsonl")[-2:]] == [700, 800]
    assert [row["offset"] for row in letters(run)] == [3]


def test_an_edit_that_fails_leaves_the_letter_as_it_was(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    before = {(row["node"], row["code"], row["attempt"]) for row in letters(run)}
    facts = failed_again(run, "--from", "node", "--set", ".Payload.After.amount=after.i / 0")
    assert (facts["replayed"], facts["failed"]) == (0, 3)
    assert facts["errors"][0]["node"].startswith("p:~replay:set-") and "zero" in facts["errors"][0]["message"]
    assert {(row["node"], row["code"], row["attempt"]) for row in letters(run)} == before
    assert done(run, "show", "p/1.0")["failed"]["payload"]["after"]["tag"] == "t3"
    for wrong in ("nonsense", ".Payload.After.amount=1 +", ".Nowhere.x=1"):
        found = failure(run, "replay", "p", "--set", wrong)
        assert found["code"].startswith("usage."), found
        assert "type=" not in found["message"], found
    mended(lab)
    assert done(run, "replay", "p")["replayed"] == 3


def test_an_edit_of_a_record_that_is_not_decoded_yet_says_what_to_type(run, lab: Lab) -> None:
    """The source gives text, which json.decode would parse: the failed record is a document."""
    build(lab)
    assert lab.run().error is None
    edit = ("--set", ".Payload.After.amount=7")
    said = run("dlq", "replay", "p", *edit).err
    assert "p:~replay:set-1: field.unresolved: .Payload.After does not contain structured data" in said
    assert "--from node" in said
    assert done(run, "replay", "p", "--from", "node", *edit)["replayed"] == 3


def test_only_destinations_without_a_copy_get_it(run, lab: Lab) -> None:
    strict = destination("strict", processors=[CONVERT])
    build(lab, destination(), strict, processors=[DECODE])
    assert lab.run().error is None
    assert delivered(lab) == Counter(range(20))
    assert delivered(lab, "strict.jsonl") == Counter(set(range(20)) - set(BAD))
    build(lab, destination(), destination("strict"), processors=[DECODE])
    assert done(run, "replay", "p")["replayed"] == 3
    assert delivered(lab) == Counter(range(20))
    assert delivered(lab, "strict.jsonl") == Counter(range(20))


def test_a_record_that_a_destination_refused(run, lab: Lab, script: Script) -> None:
    build(lab, scripted(), destination("other"), processors=[DECODE])
    script.says(refuse=[3, 7])
    assert lab.run().error is None
    assert sorted(row["offset"] for row in letters(run)) == [3, 7]
    script.says(refuse=[7])
    script.sent()
    facts = failed_again(run)
    assert (facts["replayed"], facts["failed"]) == (1, 1)
    assert script.values() == [3, 7]
    assert delivered(lab, "other.jsonl") == Counter(range(20))
    [left] = letters(run)
    assert (left["offset"], left["node"], left["attempt"]) == (7, "p:out", 2)
    script.says()
    assert done(run, "replay", "p", "--from", "node")["replayed"] == 1
    assert script.sent() == [[7]]
    assert len(lab.lines("dead.jsonl")) == 2


def test_a_dry_run_changes_nothing(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    before = snapshot(lab)
    facts = done(run, "replay", "p", "--dry-run")
    assert (facts["letters"], facts["replayed"]) == (3, 0)
    said = [f"  {row['letters']} of {row['node']} {row['code']}" for row in facts["reasons"]]
    assert run("dlq", "replay", "p", "--dry-run").out.splitlines()[1:] == said != []
    assert done(run, "discard", "p", "--note", "x", "--dry-run")["discarded"] == 0
    assert snapshot(lab) == before and len(letters(run)) == 3


def test_letters_that_no_replay_can_send_are_told_apart(run, lab: Lab) -> None:
    ids = ("a", "b")
    for name in ids:
        lab.write(f"{name}.jsonl", [{"i": 0}, {"i": "x"}])
    sources = [{**source(f"./{name}.jsonl"), "id": name} for name in ids]
    number = processor("number", "field.convert", field=".Payload.After.i", type="int")
    more = {"dead-letter-queue": queue()}
    lab.pipeline(connectors=[*sources, destination()], processors=[DECODE, number], **more)
    assert lab.run().error is None
    lab.pipeline(connectors=[sources[0], destination()], processors=[DECODE], **more)
    left = "1 can't be sent again: not in the archive, or without their source in the file"
    for options, said in (
        (["--dry-run"], "1 dead letter would be sent again from the source"),
        ([], "1 dead letter delivered"),
    ):
        ran = run("dlq", "replay", "p", *options)
        assert (ran.code, ran.out.splitlines()[0]) == (0, f"p: {said}, {left}")
    for options in (["--dry-run"], []):
        assert failure(run, "replay", "p", *options)["code"] == "dead_letters.not_kept"
    for name in ("replay_began", "replayed"):
        assert len(events(lab, name)) == 1, "the refused one is in no history"
    assert [(row["source"], row["state"]) for row in letters(run)] == [("b", "open")]


def test_a_damaged_archive_is_named_and_nothing_is_lost(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    mended(lab)
    [part] = (lab.root).rglob("~dead-letters/*.parquet")
    whole = part.read_bytes()
    part.write_bytes(whole[:100] + b"x" + whole[101:])
    found = failure(run, "replay", "p")
    assert found["code"] == "dead_letters.damaged" and part.name in found["place"]
    assert f"conduit-dagster dlq discard p --part {part.name} --note" in found["fix"], "it said NAME"
    part.unlink()
    assert failure(run, "replay", "p")["code"] == "dead_letters.damaged"
    assert failure(run, "show", "p/1.0")["code"] == "dead_letters.damaged"
    assert len(letters(run)) == 3
    part.write_bytes(whole)
    (lab.root / "dead.jsonl").unlink()  # the queue itself is not needed
    assert done(run, "replay", "p")["replayed"] == 3
    assert delivered(lab) == Counter(range(20))


def test_a_record_that_failed_in_pieces_is_not_doubled(run, lab: Lab) -> None:
    """One piece of it was delivered: it can't be sent again as a whole, and stays open."""
    (lab.root / "plugins").mkdir()
    (lab.root / "plugins" / "twice.py").write_text(TWICE)
    lab.write("in.jsonl", [{"i": 0}, {"i": 5}, {"i": 6}])
    pieces = processor("pieces", "twice")
    broken = processor("broken", "error", condition="after.i == 105", message="no")
    both = processor("both", "error", condition="after.i % 100 == 6", message="no")
    usual = {"connectors": [source(), destination()], "dead-letter-queue": queue()}
    lab.pipeline(processors=[DECODE, pieces, broken, both], **usual)
    assert lab.run().error is None
    assert delivered(lab) == Counter([0, 100, 5])
    lab.pipeline(processors=[DECODE, pieces], **usual)
    for start in ("source", "node"):
        assert failed_again(run, "--from", start)["replayed"] == 0
    assert {row["code"] for row in letters(run)} == {"dead_letters.in_pieces"}
    assert delivered(lab) == Counter([0, 100, 5])


def test_a_destination_that_caught_up_gets_no_letter_twice(run, lab: Lab) -> None:
    """It was added from the log after the processor was fixed: it has the record, the others do not."""
    build(lab, delivery={"log": "records"})
    assert lab.run().error is None
    late = destination("late", **{"start-from": "log"})
    mended(lab, destination(), late, delivery={"log": "records"})
    assert lab.run().error is None
    assert delivered(lab, "late.jsonl") == Counter(range(20))
    assert done(run, "replay", "p")["replayed"] == 3
    assert delivered(lab) == Counter(range(20)) == delivered(lab, "late.jsonl")


def test_one_that_a_destination_refuses_again_keeps_its_original(run, lab: Lab, script: Script) -> None:
    build(lab, scripted(), processors=[DECODE])
    script.says(refuse=[3])
    assert lab.run().error is None
    original = done(run, "show", "p/1.0")["original"]
    assert isinstance(original["payload"]["after"], str)  # raw, as the source gave it
    # it was read in the step: its metadata says when
    assert original["metadata"]["opencdc.readAt"] not in ("", "0")
    for start in ("source", "node"):
        assert failed_again(run, "--from", start)["failed"] == 1
        assert done(run, "show", "p/1.0")["original"] == original


def test_one_without_an_original_goes_on_from_its_node_only(run, lab: Lab, script: Script) -> None:
    """Its source was gone when a destination refused it: a prepared step does not need it."""
    build(lab, scripted(), processors=[DECODE])
    script.says(refuse=[3])
    with crashing("before-claim"):
        lab.run()
    # out of its folder, where it would be found
    (lab.root / "away").mkdir()
    (lab.root / "in.jsonl").rename(lab.root / "away" / "in.jsonl")
    assert lab.run().error is None
    (lab.root / "away" / "in.jsonl").rename(lab.root / "in.jsonl")
    assert done(run, "show", "p/1.0")["original"] is None
    assert failed_again(run)["failed"] == 1
    assert [row["code"] for row in letters(run)] == ["dead_letters.no_original"]
    assert failed_again(run, "--from", "node")["failed"] == 1
    shown = done(run, "show", "p/1.0")
    assert shown["original"] is None and shown["failed"]["payload"]["after"]["i"] == 3
    script.says()
    script.sent()
    assert done(run, "replay", "p", "--from", "node")["replayed"] == 1
    assert script.values() == [3]


def test_a_piece_that_a_destination_refuses_is_not_sent_with_the_others_again(run, lab: Lab, script: Script) -> None:
    (lab.root / "plugins").mkdir(exist_ok=True)
    (lab.root / "plugins" / "twice.py").write_text(TWICE)
    lab.write("in.jsonl", [{"i": 0}, {"i": 5}, {"i": 6}])
    lab.pipeline(
        connectors=[source(), scripted()],
        processors=[DECODE, processor("pieces", "twice")],
        **{"dead-letter-queue": queue()},
    )
    script.says(refuse=[105, 6])
    assert lab.run().error is None
    assert sorted(script.values()) == [0, 5, 6, 100, 105, 106]
    assert [row["offset"] for row in letters(run)] == [2, 1]
    script.says()
    for start in ("source", "node"):
        assert failed_again(run, "--from", start)["replayed"] == 0
    assert script.values() == []
    assert {row["code"] for row in letters(run)} == {"dead_letters.in_pieces"}


@pytest.mark.parametrize("refusing", ["a processor", "the destination"])
def test_what_fails_again_for_a_destination_that_came_late_has_a_letter_for_it(
    run, lab: Lab, script: Script, refusing: str
) -> None:
    """The queue has the record once; the index has one letter for the earlier destinations and one for the late one."""
    build(lab, delivery={"log": "records"})
    assert lab.run().error is None
    late = scripted("late", **{"start-from": "log"})
    if refusing == "a processor":
        build(lab, destination(), late, delivery={"log": "records"})
        expected = set(range(20)) - set(BAD)
    else:
        expected = set(range(20))  # the destination refuses the ones that it is sent
        script.says("late", refuse=list(BAD))
        mended(lab, destination(), late, delivery={"log": "records"})
    assert lab.run().error is None
    assert len(lab.lines("dead.jsonl")) == 3 and len(letters(run)) == 6
    assert Counter(script.values("late")) == Counter(expected)
    script.says("late")
    mended(lab, destination(), late, delivery={"log": "records"})
    assert done(run, "replay", "p")["replayed"] == 6
    assert delivered(lab) == Counter(range(20)) and sorted(script.values("late")) == list(BAD)
    assert len(lab.lines("dead.jsonl")) == 3


def test_a_piece_that_was_dropped_as_a_duplicate_is_not_sent_by_a_replay(run, lab: Lab) -> None:
    """The replay would pass by deduplicate, which has seen the piece that failed behind it."""
    lab.write("in.jsonl", [{"items": [{"k": 1, "n": "1"}]}, {"items": [{"k": 1, "n": "1"}, {"k": 2, "n": "x"}]}])
    each = processor("each", "split", field=".Payload.After.items")
    once = processor("once", "deduplicate", **{"key": "after.items.k", "window.records": "100"})
    number = processor("number", "field.convert", field=".Payload.After.items.n", type="int")
    usual = {"connectors": [source(), destination()], "dead-letter-queue": queue()}
    lab.pipeline(processors=[DECODE, each, once, number], **usual)
    assert lab.run().error is None
    before = lab.lines("out.jsonl")
    lab.pipeline(processors=[DECODE, each, once], **usual)
    for start in ("source", "node"):
        assert failed_again(run, "--from", start)["replayed"] == 0
    assert {row["code"] for row in letters(run)} == {"dead_letters.in_pieces"}
    assert lab.lines("out.jsonl") == before and len(before) == 1


def test_letters_whose_only_destination_left_the_file_are_closed_by_a_replay_and_told(run, lab: Lab) -> None:
    """It said that they were delivered."""
    bad = processor("bad", "error", "after.i in (3, 7)", message="bad")
    build(lab, destination(), {**destination("second"), "processors": [bad]}, processors=[DECODE])
    assert lab.run().error is None
    build(lab, destination(), processors=[DECODE])
    assert len(letters(run)) == 2
    assert (
        "0 dead letters would be sent again from the source, 2 would be closed"
        in run("dlq", "replay", "p", "--dry-run").out
    )
    assert "0 dead letters delivered, 2 are closed" in run("dlq", "replay", "p").out
    notes = [one["note"] for one in letters(run, "--state", "discarded")]
    assert notes == ["second was removed from the pipeline's file"] * 2
