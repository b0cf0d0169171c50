"""``dlq list``, ``show``, ``export``, ``discard``: inspecting and closing dead letters."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from lab.dlq_lab import GOOD, build, delivered, done, failure, letters, mended
from lab.operating import events
from lab.support import DECODE, Lab, destination, source

pytestmark = pytest.mark.usefixtures("shared_session")


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
    # bytes of a command line that are no text
    for name in ("node", "code", "source", "namespace", "part"):
        assert letters(run, f"--{name}", "b\udcff") == []
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


def test_a_letter_stays_redacted_while_its_file_has_an_error(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    file = lab.root / "pipelines" / "p.yaml"
    broken = file.read_text().replace("plugin: json.decode", "plugin: json.decod")
    file.write_text(f"{broken}  redact: [.Payload.After.tag]\n")
    assert done(run, "show", "p/1.0")["failed"]["payload"]["after"]["tag"] == "[redacted]"
    assert done(run, "show", "p/1.0", "--reveal")["failed"]["payload"]["after"]["tag"] == "t3"


def test_a_letter_stays_redacted_where_its_file_lies_elsewhere(run, lab: Lab) -> None:
    """The file that the pipeline ran from says what to mask, also where the command names none, or another one."""
    build(lab)
    file = lab.root / "elsewhere.yaml"
    (lab.root / "pipelines" / "p.yaml").rename(file)
    file.write_text(f"{file.read_text()}  redact: [.Payload.After.tag]\n")
    assert run("run", "--once", "elsewhere.yaml").code == 0
    (lab.root / "other.yaml").write_text(file.read_text().replace("id: p\n", "id: q\n"))
    for more in ([], ["--file", "other.yaml"]):
        assert done(run, "show", "p/1.0", *more)["failed"]["payload"]["after"]["tag"] == "[redacted]"
    file.unlink()
    assert done(run, "show", "p/1.0")["failed"]["payload"]["after"]["tag"] == "t3"


def test_describe_tells_the_id_and_the_state_of_each_letter(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    assert run("dlq", "discard", "p", "--id", "p/1.0", "--note", "no").out == "p: 1 dead letter is discarded\n"
    told = run("pipelines", "describe", "p").out
    assert "p/1.0  discarded  " in told and "p/1.1  open  " in told


def test_a_refusal_tells_a_file_with_errors_from_one_that_is_gone(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    file = lab.root / "pipelines" / "p.yaml"
    file.write_text(file.read_text().replace("plugin: json.decode", "plugin: json.decod"))
    broken = failure(run, "replay", "p")
    assert (broken["code"], "its file has errors" in broken["message"]) == ("validation.failed", True)
    file.unlink()
    gone = failure(run, "replay", "p")
    assert (gone["code"], "no file names it" in gone["message"]) == ("validation.failed", True)
    assert gone["fix"].startswith("put its file back")
    refused = run("pipelines", "delete", "p").err
    assert "put its file back; replay or discard its dead letters" in refused


def test_letters_are_discarded_while_their_file_has_errors_or_is_gone(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    file = lab.root / "pipelines" / "p.yaml"
    file.write_text("pipelines: [")
    assert done(run, "discard", "p", "--id", "p/1.0", "--note", "no")["discarded"] == 1
    file.unlink()
    assert done(run, "discard", "p", "--note", "no")["discarded"] == 2
    (lab.root / "conduit.yaml").write_text("state: {lease: soon}\n")
    assert failure(run, "discard", "p", "--note", "no")["code"] == "validation.failed"


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


def test_an_export_that_cannot_be_written_is_one_clear_error_and_keeps_what_is_there(run, lab: Lab) -> None:
    build(lab)
    assert lab.run().error is None
    assert failure(run, "export", "p", "nowhere/letters.jsonl")["code"] == "file.missing"
    assert failure(run, "export", "p", ".", "--force")["code"] == "file.is_folder"
    os.mkfifo("pipe")
    assert failure(run, "export", "p", "pipe", "--force")["code"] == "usage.not_a_file"
    assert done(run, "export", "p", "letters.jsonl")["letters"] == 3
    before = Path("letters.jsonl").read_bytes()
    for part in (lab.root / ".conduit").rglob("*.parquet"):
        part.unlink()
    assert failure(run, "export", "p", "letters.jsonl", "--force")["code"] == "dead_letters.damaged"
    assert Path("letters.jsonl").read_bytes() == before


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


def test_nothing_to_replay(run, lab: Lab) -> None:
    lab.write("in.jsonl", GOOD)
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE])
    assert failure(run, "replay", "p")["code"] == "pipeline.never_ran"
    assert lab.run().error is None
    assert failure(run, "replay", "p")["code"] == "dead_letters.none"
    assert "no open dead letters" in run("dlq", "list", "p").out
    assert json.loads(run("dlq", "list", "--json").out)["result"] == {"pipelines": []}
