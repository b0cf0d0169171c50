"""``dlq``: dead letters are listed, shown, exported, sent again and discarded (issue: dead letters)."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from kills import crashing
from operating import error, events, offsets, result, snapshot
from scripted import Script, scripted
from support import DECODE, Lab, destination, processor, queue, source

from conduit_dagster.state.overview import source_rows

pytestmark = pytest.mark.usefixtures("shared_session")

GOOD = [{"i": i, "amount": i * 10} for i in range(20)]
CONVERT = processor("convert", "field.convert", field=".Payload.After.amount", type="int")
BAD = (3, 7, 8)


def rows() -> list[dict[str, Any]]:
    """Twenty, three of them without a number."""
    return [{**row, "amount": f"many{row['i']}"} if row["i"] in BAD else row for row in GOOD]


def build(lab: Lab, *outputs: Any, **more: Any) -> None:
    """A pipeline whose second processor nacks three of twenty records."""
    lab.write("in.jsonl", rows())
    tag = processor("tag", "field.set", field=".Payload.After.tag", expression="'t' + str(after.i)")
    more = {"processors": [DECODE, tag, CONVERT], "dead-letter-queue": queue(), **more}
    lab.pipeline(connectors=[source(), *(outputs or [destination()])], **more)


def mended(lab: Lab, *outputs: Any, **more: Any) -> None:
    """The same pipeline, with a processor that takes the digits of a text."""
    digits = processor(
        "digits",
        "field.set",
        condition="isinstance(after.amount, str)",
        field=".Payload.After.amount",
        expression="after.i * 10",
    )
    tag = processor("tag", "field.set", field=".Payload.After.tag", expression="'t' + str(after.i)")
    lab.pipeline(
        connectors=[source(), *(outputs or [destination()])],
        processors=[DECODE, tag, digits, CONVERT],
        **{"dead-letter-queue": queue(), **more},
    )


def delivered(lab: Lab, name: str = "out.jsonl") -> Counter[int]:
    """How often each record is there."""
    return Counter(row["i"] for row in lab.documents(name))


def positions(lab: Lab) -> list[Any]:
    """Where every source stands."""
    with lab.store() as database:
        return source_rows(database, "p")


def test_a_list_counts_by_reason_and_shows_the_newest(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    facts = done(run, "list", "p")["pipelines"][0]
    assert [(row["letters"], row["node"], row["state"]) for row in facts["reasons"]] == [(3, "p:convert", "open")]
    assert [row["offset"] for row in facts["letters"]] == [8, 7, 3]
    assert "many8" in facts["letters"][0]["message"]
    assert [row["offset"] for row in letters(run, "--limit", "1")] == [8]
    shown = run("dlq", "list").out
    assert "p/1.2" in shown and "3 open dead letters" in shown


def done(run: Any, *words: str) -> Any:
    """What a verb of dlq that went well gave."""
    return result(run("dlq", *words, "--json"))


def failure(run: Any, *words: str) -> Any:
    """The error of one that did not."""
    return error(run("dlq", *words, "--json"))


def sent(script: Script) -> list[int]:
    """What a scripted destination got since the last look, in order."""
    return [i for batch in script.sent() for i in batch]


def letters(run: Any, *more: str) -> list[dict[str, Any]]:
    """The listed letters, the newest first."""
    found = done(run, "list", "p", *more)["pipelines"]
    return found[0]["letters"] if found else []


def test_filters(run, lab: Lab) -> None:
    build(lab)
    lab.write("in.jsonl", ["no json"], mode="a")
    assert lab.run().error is None
    assert [row["offset"] for row in letters(run)] == [20, 8, 7, 3]
    assert [row["offset"] for row in letters(run, "--node", "p:decode")] == [20]
    code = letters(run, "--node", "p:decode")[0]["code"]
    assert [row["offset"] for row in letters(run, "--code", code)] == [20]
    assert letters(run, "--code", "nothing") == []
    assert [row["offset"] for row in letters(run, "--where", "after.i > 5")] == [8, 7]
    assert [row["offset"] for row in letters(run, "--where", "after.tag == 't3'")] == [3]
    assert [row["offset"] for row in letters(run, "--id", "p/1.0", "--id", "p/1.3")] == [20, 3]
    assert letters(run, "--until", "1d") == [] and len(letters(run, "--since", "1d")) == 4
    assert letters(run, "--source", "other") == [] and len(letters(run, "--source", "in")) == 4
    assert letters(run, "--namespace", "x") == []
    assert failure(run, "list", "p", "--where", "after.i >")["code"] == "usage.expression"
    assert failure(run, "list", "p", "--since", "soon")["code"] == "usage.since"
    assert failure(run, "list", "p", "--id", "7")["code"] == "usage.letter"


def test_one_letter_is_shown_with_what_each_processor_does_to_it(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    facts = done(run, "show", "p/1.0")
    assert facts["failed"]["payload"]["after"] == {"i": 3, "amount": "many3", "tag": "t3"}
    assert [node["node"] for node in facts["nodes"]] == ["p:decode", "p:tag", "p:convert"]
    assert facts["nodes"][0]["records"][0]["payload"]["after"] == {"i": 3, "amount": "many3"}
    assert facts["nodes"][2]["said"].startswith("nacked, ")
    assert facts["nodes"][2]["records"] == []
    mended(lab)
    facts = done(run, "show", "p/1.0")
    assert [node["said"] for node in facts["nodes"]] == ["passed"] * 4
    shown = run("dlq", "show", "p/1.0").out
    assert "failed at p:convert" in shown and "many3" in shown
    assert failure(run, "show", "p/1.9")["code"] == "dead_letters.unknown"


def test_an_export_has_both_records(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    assert done(run, "export", "p", "letters.jsonl")["letters"] == 3
    first = lab.documents("letters.jsonl")[0]
    assert (first["id"], first["offset"], first["state"]) == ("p/1.0", 3, "open")
    assert first["failed"]["payload"]["after"]["tag"] == "t3"
    assert isinstance(first["original"]["payload"]["after"], str)  # raw, as the source gave it
    assert failure(run, "export", "p", "letters.jsonl")["code"] == "usage.file_exists"
    assert done(run, "export", "p", "letters.jsonl", "--force", "--where", "after.i == 7")["letters"] == 1


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
    facts = done(run, "replay", "p")
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


def test_from_the_node_it_goes_on_as_it_was(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    # its tag is not made again: what was done before the node is kept
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
    facts = done(run, "replay", "p", "--from", "node")
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
    facts = done(run, "replay", "p", "--set", ".Payload.After.amount=after.i / 0")
    assert (facts["replayed"], facts["failed"]) == (0, 3)
    assert {row["node"] for row in letters(run)} == {"p:convert"}
    assert done(run, "show", "p/1.0")["failed"]["payload"]["after"]["tag"] == "t3"
    for wrong in ("nonsense", ".Payload.After.amount=1 +", ".Nowhere.x=1"):
        found = failure(run, "replay", "p", "--set", wrong)
        assert found["code"].startswith("usage."), found
    mended(lab)
    assert done(run, "replay", "p")["replayed"] == 3


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
    facts = done(run, "replay", "p")
    assert (facts["replayed"], facts["failed"]) == (1, 1)
    assert sent(script) == [3, 7]
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
    assert done(run, "discard", "p", "--note", "x", "--dry-run")["discarded"] == 0
    assert snapshot(lab) == before and len(letters(run)) == 3


def test_discarded_letters_are_closed_with_a_note(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    assert done(run, "discard", "p", "--where", "after.i < 5", "--note", "a test row")["discarded"] == 1
    assert [row["offset"] for row in letters(run)] == [8, 7]
    [closed] = letters(run, "--state", "discarded")
    assert (closed["offset"], closed["note"]) == (3, "a test row")
    assert events(lab, "discarded")[0]["note"] == "a test row"
    assert failure(run, "discard", "p", "--note", " ")["code"] == "usage.note"
    assert failure(run, "discard", "p", "--id", "p/1.0", "--note", "x")["code"] == "dead_letters.none"
    mended(lab)
    assert done(run, "replay", "p")["replayed"] == 2
    assert delivered(lab) == Counter(set(range(20)) - {3})


def test_a_damaged_archive_is_named_and_nothing_is_lost(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    mended(lab)
    [part] = (lab.root).rglob("~dead-letters/*.parquet")
    whole = part.read_bytes()
    part.write_bytes(whole[:100] + b"x" + whole[101:])
    found = failure(run, "replay", "p")
    assert found["code"] == "dead_letters.damaged" and part.name in found["place"]
    part.unlink()
    assert failure(run, "replay", "p")["code"] == "dead_letters.damaged"
    assert failure(run, "show", "p/1.0")["code"] == "dead_letters.damaged"
    assert len(letters(run)) == 3
    part.write_bytes(whole)
    (lab.root / "dead.jsonl").unlink()  # the queue itself is not needed
    assert done(run, "replay", "p")["replayed"] == 3
    assert delivered(lab) == Counter(range(20))


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
    assert sorted(sent(script)) == [3, 7, 8]
    assert letters(run) == [] and len(letters(run, "--state", "replayed")) == 3
    assert [row["id"] for row in positions(lab)] == ["in"]


def test_nothing_to_replay(run, lab: Lab) -> None:
    lab.write("in.jsonl", GOOD)
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE])
    assert failure(run, "replay", "p")["code"] == "pipeline.never_ran"
    assert lab.run().error is None
    assert failure(run, "replay", "p")["code"] == "dead_letters.none"
    assert "no open dead letters" in run("dlq", "list", "p").out
    assert json.loads(run("dlq", "list", "--json").out)["result"] == {"pipelines": []}


def test_a_record_that_failed_in_pieces_is_not_doubled(run, lab: Lab) -> None:
    """One piece of it was delivered: as a whole it can't be sent again, and it stays open."""
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
        assert done(run, "replay", "p", "--from", start)["replayed"] == 0
    assert {row["code"] for row in letters(run)} == {"dead_letters.in_pieces"}
    assert delivered(lab) == Counter([0, 100, 5])


TWICE = '''
from conduit_dagster.processors.base import Processor
from conduit_dagster.record import copy


class Twice(Processor):
    """Each record, and one whose number is a hundred more."""

    name = "twice"

    def process(self, record):
        other = copy(record)
        other.after = {**record.after, "i": record.after["i"] + 100}
        return [record, other]
'''


def test_a_replay_that_was_killed_is_not_in_the_way_of_a_discard(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    mended(lab)
    with crashing("after-replay"):
        lab.replay()
    assert done(run, "discard", "p", "--note", "given up")["discarded"] == 3
    assert letters(run) == [] and [row["id"] for row in positions(lab)] == ["in"]


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


def test_a_destination_that_caught_up_gets_no_letter_twice(run, lab: Lab) -> None:
    """It was added from the log once the processor was mended: it has the record, the others have not."""
    build(lab, delivery={"log": "records"})
    assert lab.run().error is None
    late = destination("late", **{"start-from": "log"})
    mended(lab, destination(), late, delivery={"log": "records"})
    assert lab.run().error is None
    assert delivered(lab, "late.jsonl") == Counter(range(20))
    assert done(run, "replay", "p")["replayed"] == 3
    assert delivered(lab) == Counter(range(20)) == delivered(lab, "late.jsonl")
