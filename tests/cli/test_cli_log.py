"""``log current``, ``oldest``, ``show``, ``compact``, ``export`` and ``import`` (CASES.md, C9, C15, C16, C18, C22)."""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path
from typing import Any

from lab.kills import crashing
from lab.operating import NAMESPACE, RECORDS, after_bulk_error, append, build, error, events, offsets, result, snapshot
from lab.scripted import Script
from lab.support import DECODE, Lab, destination, source

from conduit_dagster.assets.offset_gaps import offset_gaps
from conduit_dagster.commit_log.binary import LogRecord, encode_log_record


def value_of(entry: dict[str, Any]) -> int:
    after = entry["record"]["payload"]["after"]
    return (json.loads(base64.b64decode(after)) if isinstance(after, str) else after)["i"]


def logged(lab: Lab, count: int, **more: Any) -> None:
    """A pipeline with a log whose namespaces are logged with the entries."""
    build(lab, count, destination(), delivery={**RECORDS, **more}, processors=[DECODE])


# -- looking --------------------------------------------------------------------------------------------------------


def test_c09_seven_entries_in_order(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script, delivery=RECORDS)
    facts = result(run("log", "show", "p", "--from", "9", "--to", "15", "--json"))
    assert (facts["source"], facts["from"], facts["more"]) == ("in", "log", False)
    rows = facts["entries"]
    assert [(row["offset"], row["mode"], row["operation"], row["namespace"]) for row in rows] == [
        (offset, "sync", "create", "") for offset in range(9, 16)
    ]
    assert [value_of(row) for row in rows] == list(range(9, 16))
    assert all(row["time"].endswith("+00:00") for row in rows)
    lines = run("log", "show", "p", "--from", "9", "--to", "15").out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["offset", *map(str, range(9, 16))]
    assert lines[-1] == "7 entries of in, from the log"


def test_c09_without_a_log_the_open_step_as_it_is_staged(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script, processors=[DECODE, NAMESPACE])
    facts = result(run("log", "show", "p", "--from", "9", "--to", "15", "--json"))
    assert facts["from"] == "step, as it is staged for out"
    assert [(row["offset"], row["namespace"], value_of(row)) for row in facts["entries"]] == [
        (i, "AABBAABBCACBAACB"[i], i) for i in range(9, 16)
    ]


def test_one_that_never_ran_is_not_said_to_keep_no_log(run, lab: Lab) -> None:
    logged(lab, 1)
    assert lab.run().error is None
    lab.pipeline(id="q", connectors=[source(), destination("q")], delivery=RECORDS)
    file = str(lab.root / "q.log")
    for words in (("current", "q"), ("oldest", "q"), ("show", "q"), ("export", "q", file), ("compact", "q")):
        assert error(run("log", *words, "--json"))["code"] == "pipeline.never_ran", words


def test_show_begins_with_what_is_not_handled_and_stops_at_the_limit(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script, delivery=RECORDS)
    assert [row["offset"] for row in result(run("log", "show", "p", "--json"))["entries"]] == list(range(9, 16))
    facts = result(run("log", "show", "p", "--from", "2", "--limit", "3", "--json"))
    assert ([row["offset"] for row in facts["entries"]], facts["more"]) == ([2, 3, 4], True)
    assert "--from 5" in run("log", "show", "p", "--from", "2", "--limit", "3").out
    script.says()
    assert lab.run().error is None
    assert result(run("log", "show", "p", "--json"))["entries"] == []


def test_raw_data_is_shown_as_text(run, lab: Lab) -> None:
    logged(lab, 1)
    assert lab.run().error is None
    assert '{\\"i\\":0' in run("log", "show", "p", "--from", "0").out.replace(" ", "")


def test_redacted_fields_are_masked_unless_they_are_asked_for(run, lab: Lab, script: Script) -> None:
    for more in ({"delivery": RECORDS}, {}):
        after_bulk_error(lab, script, redact=[".Payload.After.i"], processors=[DECODE], **more)
        for form in ([], ["--json"]):
            masked = run("log", "show", "p", *form).out
            assert "[redacted]" in masked and '"i": 9' not in masked
        revealed = result(run("log", "show", "p", "--reveal", "--json"))["entries"]
        assert [value_of(row) for row in revealed] == list(range(9, 16))
        script.says()
        assert lab.run().error is None
        shutil.rmtree(lab.root / ".conduit")


def test_beyond_the_end_and_backwards_ranges_are_refused(run, lab: Lab) -> None:
    logged(lab, 4)
    assert lab.run().error is None
    beyond = error(run("log", "show", "p", "--from", "4", "--json"))
    assert (beyond["code"], "the newest one of in is 3" in beyond["message"]) == ("log.beyond_end", True)
    assert error(run("log", "show", "p", "--from", "3", "--to", "1", "--json"))["code"] == "usage.range"
    assert run("log", "show", "p", "--from", "-1").code == 2
    assert error(run("log", "show", "p", "--source", "inn", "--json"))["fix"] == "did you mean in?"


def test_current_and_oldest(run, lab: Lab) -> None:
    logged(lab, 40, **{"batch-size": 20, "log-segment-size": "1KB"})
    assert lab.run().error is None
    (row,) = result(run("log", "current", "p", "--json"))["logs"]
    assert (row["entry"]["offset"], row["entry"]["segment"], row["segments"], row["entries"]) == (39, 20, 2, 21)
    (row,) = result(run("log", "oldest", "p", "--json"))["logs"]
    assert (row["entry"]["offset"], row["entry"]["segment"]) == (19, 0)  # the run compacted its closed segment
    assert run("log", "current", "p").out.splitlines()[1].split()[:2] == ["in", "39"]


def test_without_a_log_they_say_what_that_means(run, lab: Lab, script: Script, crashes: Any) -> None:
    build(lab, 4, destination())
    crashes(lab, "before-publish")
    facts = result(run("log", "current", "p", "--json"))
    assert (facts["log"], facts["logs"]) == ("positions", [])
    (span,) = facts["open"]
    assert (span["step"], span["state"], span["source"], span["first_offset"], span["records"]) == (
        1,
        "prepared",
        "in",
        0,
        4,
    )
    assert "no log of records" in run("log", "oldest", "p").out
    refusal = error(run("log", "show", "p", "--json"))
    assert refusal["code"] == "log.positions_only"
    assert "not at hand" in refusal["message"]
    assert "delivery.log: records" in refusal["fix"]


# -- compaction -----------------------------------------------------------------------------------------------------


def test_compaction_keeps_the_last_entry_and_a_dry_run_counts(run, lab: Lab) -> None:
    """C15 and C16: with imported segments, because a run compacts those that it closes itself."""
    logged(lab, 9_000)
    assert lab.run().error is None
    run("log", "export", "p", "all.log")
    fresh(lab, **{"log-segment-size": "10KB"})
    run("log", "import", "p", "all.log")
    (row,) = result(run("log", "compact", "p", "--json"))["logs"]
    assert (row["segments"], row["entries"]) == (0, 0)  # nobody has acknowledged anything
    assert lab.run().error is None
    before = snapshot(lab)
    (row,) = result(run("log", "compact", "p", "--dry-run", "--json"))["logs"]
    assert (row["segments"], row["entries"]) == (2, 2 * 4095)
    assert snapshot(lab) == before
    (row,) = result(run("log", "compact", "p", "--json"))["logs"]
    assert (row["segments"], row["entries"]) == (2, 2 * 4095)
    assert row["bytes"] > 0
    assert events(lab, "log_compacted")[0]["entries"] == 2 * 4095
    assert result(run("log", "compact", "p", "--json"))["logs"][0]["entries"] == 0


def test_c18_reading_from_what_is_gone_gives_the_next_surviving_entry(run, lab: Lab) -> None:
    logged(lab, 40, **{"batch-size": 20, "log-segment-size": "1KB"})
    assert lab.run().error is None
    entries = result(run("log", "show", "p", "--from", "3", "--to", "21", "--json"))["entries"]
    assert [row["offset"] for row in entries] == [19, 20, 21]
    gone = error(run("positions", "rewind", "p", "--to-offset", "3", "--json"))
    assert (gone["code"], "--to-offset 20" in gone["fix"]) == ("log.gone", True)


def test_compaction_and_rewind_respect_the_retention(run, lab: Lab) -> None:
    """Handled entries within it stay, also under ``log compact``, and a rewind delivers them again."""
    small = {"batch-size": 20, "log-segment-size": "1KB"}
    logged(lab, 60, **small, **{"log-retention": {"time": "1h"}})
    assert lab.run().error is None
    for more in ((), ("--dry-run",)):
        (row,) = result(run("log", "compact", "p", *more, "--json"))["logs"]
        assert (row["segments"], row["entries"]) == (0, 0)
    assert result(run("positions", "rewind", "p", "--to-offset", "15", "--json"))
    assert lab.run().error is None
    assert [row["i"] for row in lab.documents("out.jsonl")] == [*range(60), *range(15, 60)]
    logged(lab, 60, **small, **{"log-retention": {"bytes": "1B"}})
    (row,) = result(run("log", "compact", "p", "--json"))["logs"]
    assert (row["segments"], row["entries"]) == (1, 19)


def test_an_open_step_is_not_compacted(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script, delivery=RECORDS)
    assert error(run("log", "compact", "p", "--json"))["code"] == "log.step_open"
    refusal = error(run("log", "compact", "p", "--dry-run", "--json"))
    assert refusal["code"] == "log.step_open"


# -- export and import ------------------------------------------------------------------------------------------------


def test_c22_an_export_is_in_the_reference_layout(run, lab: Lab) -> None:
    logged(lab, 3)
    assert lab.run().error is None
    facts = result(run("log", "export", "p", "out.log", "--from", "1", "--to", "1", "--json"))
    data = (lab.root / "out.log").read_bytes()
    assert (facts["entries"], facts["bytes"]) == (1, len(data))
    assert data[:8] == (1).to_bytes(8)  # the offset
    assert data[20] == 1  # sync
    key = int.from_bytes(data[21:25])
    size = int.from_bytes(data[25 + key : 29 + key])
    assert len(data) == 29 + key + size
    assert int.from_bytes(data[8:12]) == key + size + 8
    assert error(run("log", "export", "p", "out.log", "--json"))["code"] == "usage.file_exists"
    assert result(run("log", "export", "p", "out.log", "--force", "--json"))["entries"] == 3
    assert [path.name for path in lab.root.glob(".out*")] == []


def fresh(lab: Lab, **delivery: Any) -> None:
    """As in a new project, except for the exported file."""
    for path in (".conduit", "out.jsonl", "dead.jsonl"):
        target = lab.root / path
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
    lab.write("in.jsonl", [])
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE], delivery={**RECORDS, **delivery})


def test_an_export_replaces_no_device_pipe_or_folder(run, lab: Lab) -> None:
    logged(lab, 1)
    assert lab.run().error is None
    os.mkfifo("pipe")
    assert error(run("log", "export", "p", "pipe", "--force", "--json"))["code"] == "usage.not_a_file"
    assert Path("pipe").is_fifo()
    folder = error(run("log", "export", "p", ".", "--force", "--json"))
    assert (folder["code"], folder["fix"]) == ("file.is_folder", "name a file in it")
    missing = error(run("log", "export", "p", "no/all.log", "--json"))
    assert (missing["code"], missing["place"]) == ("file.missing", "no/all.log")


def test_c22_what_was_exported_is_imported_and_delivered(run, lab: Lab) -> None:
    logged(lab, 10)
    assert lab.run().error is None
    delivered = lab.documents("out.jsonl")
    run("log", "export", "p", "all.log")
    fresh(lab)
    assert result(run("log", "import", "p", "all.log", "--dry-run", "--json"))["entries"] == 10
    assert not (lab.root / ".conduit").exists()
    facts = result(run("log", "import", "p", "all.log", "--json"))
    assert (facts["first"], facts["last"], facts["entries"]) == (0, 9, 10)
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == delivered
    assert offsets(lab)["out"] == 9
    append(lab, 10, 12)
    assert lab.run().progress.read == 2
    assert len(lab.documents("out.jsonl")) == 12
    assert error(run("log", "import", "p", "all.log", "--json"))["code"] == "log.import_overlaps"


def test_no_import_makes_a_pipeline_one_that_a_user_stopped(run, lab: Lab) -> None:
    """It is started where its file says running: the verbs said that it would not be."""
    logged(lab, 10)
    assert lab.run().error is None
    run("log", "export", "p", "all.log")
    lab.pipeline(id="q", connectors=[source(), destination("q")], delivery=RECORDS)

    assert result(run("log", "import", "q", "all.log", "--dry-run", "--json"))["entries"] == 10
    assert error(run("offsets", "show", "q", "out", "--json"))["code"] == "pipeline.never_ran"

    assert error(run("log", "import", "q", "nowhere.log", "--json"))["code"] == "file.missing"
    assert error(run("positions", "rewind", "q", "--to-start", "--json"))["code"] == "pipeline.never_ran"
    assert error(run("offsets", "show", "q", "out", "--json"))["code"] == "pipeline.never_ran"
    assert result(run("log", "import", "q", "all.log", "--json"))["entries"] == 10
    (row,) = (one for one in result(run("pipelines", "list", "--json"))["pipelines"] if one["id"] == "q")
    assert (row["status"], row["reason"], row["active_ns"]) == (None, "", 0)
    assert "status    never ran (its file says running)" in run("pipelines", "describe", "q").out


def test_a_part_is_imported_with_its_offsets(run, lab: Lab) -> None:
    logged(lab, 10)
    assert lab.run().error is None
    run("log", "export", "p", "part.log", "--from", "4", "--to", "7")
    fresh(lab)
    assert result(run("log", "import", "p", "part.log", "--json"))["first"] == 4
    assert lab.run().error is None
    assert [row["i"] for row in lab.documents("out.jsonl")] == [4, 5, 6, 7]
    assert offsets(lab)["out"] == 7
    (row,) = result(run("positions", "show", "p", "--json"))["pipelines"][0]["sources"]
    assert (row["position"], row["offset"], row["log"]["waiting"]) == (8, 8, 0)
    append(lab, 8, 9)
    assert lab.run().error is None
    assert [row["i"] for row in lab.documents("out.jsonl")] == [4, 5, 6, 7, 8]
    assert offsets(lab)["out"] == 8


def test_offsets_that_were_never_in_a_log_are_no_gap_between_steps(run, lab: Lab) -> None:
    logged(lab, 10)
    assert lab.run().error is None
    assert run("log", "export", "p", "part.log", "--from", "6").code == 0
    lab.write("few.jsonl", [{"i": i} for i in range(3)])
    lab.pipeline(
        id="q", connectors=[source("./few.jsonl"), destination("other")], delivery=RECORDS, processors=[DECODE]
    )
    assert lab.run("q").error is None
    assert result(run("log", "import", "q", "part.log", "--json"))["first"] == 6
    for _ in range(2):
        with lab.store() as database:
            assert offset_gaps(database, "q") == []
        assert lab.run("q").error is None
    assert [row["i"] for row in lab.documents("other.jsonl")] == [0, 1, 2, 6, 7, 8, 9]


def test_the_source_goes_on_where_the_export_left_it(run, lab: Lab) -> None:
    """The same source file: without its position the records would be logged twice."""
    logged(lab, 5)
    assert lab.run().error is None
    position = json.dumps(result(run("log", "export", "p", "all.log", "--json"))["source_position"])
    shutil.rmtree(lab.root / ".conduit")
    (lab.root / "out.jsonl").unlink()
    run("log", "import", "p", "all.log", "--position", position)
    append(lab, 5, 6)
    assert lab.run().progress.read == 6
    assert [row["i"] for row in lab.documents("out.jsonl")] == list(range(6))


def test_many_entries_become_several_segments(run, lab: Lab) -> None:
    logged(lab, 9_000)
    assert lab.run().error is None
    run("log", "export", "p", "all.log")
    fresh(lab, **{"log-segment-size": "10KB"})
    assert result(run("log", "import", "p", "all.log", "--json"))["entries"] == 9_000
    (row,) = result(run("log", "current", "p", "--json"))["logs"]
    assert (row["segments"], row["entries"], row["entry"]["offset"]) == (3, 9_000, 8_999)
    assert lab.run().error is None
    assert [row["i"] for row in lab.documents("out.jsonl")] == list(range(9_000))


def test_entries_of_any_data_are_imported_as_raw_and_delivered(run, lab: Lab) -> None:
    """A log in this layout from another program: without ``--as raw`` it is refused, with instructions."""
    fresh(lab)
    lab.pipeline(connectors=[source(), destination()], delivery=RECORDS)
    found = [LogRecord(place, 1_491_252_302, 1, b"orders", b"line %d" % place) for place in range(3)]
    (lab.root / "foreign.log").write_bytes(b"".join(map(encode_log_record, found)))
    refusal = error(run("log", "import", "p", "foreign.log", "--json"))
    assert (refusal["code"], "--as raw" in refusal["fix"]) == ("log.import_damaged", True)
    assert error(run("log", "import", "p", "foreign.log", "--as", "row", "--json"))["code"] == "usage.contents"
    assert result(run("log", "import", "p", "foreign.log", "--as", "raw", "--json"))["entries"] == 3
    entries = result(run("log", "show", "p", "--json"))["entries"]
    assert [(row["offset"], row["mode"], row["namespace"]) for row in entries] == [
        (i, "sync", "orders") for i in range(3)
    ]
    assert lab.run().error is None
    assert lab.lines("out.jsonl") == ["line 0", "line 1", "line 2"]


def test_nothing_is_imported_while_a_step_is_prepared(run, lab: Lab) -> None:
    """The step ends with the positions that it was planned with: they must not become offsets of the log meanwhile."""
    lab.write("in.jsonl", range(3))
    lab.pipeline(connectors=[source(), destination()])
    with crashing("after-prepare"):
        lab.run()
    lab.pipeline(connectors=[source(), destination()], delivery=RECORDS)
    found = [LogRecord(3 + place, 1_491_252_302, 1, b"", b"%d" % (3 + place)) for place in range(2)]
    (lab.root / "foreign.log").write_bytes(b"".join(map(encode_log_record, found)))
    words = ("log", "import", "p", "foreign.log", "--as", "raw", "--json")
    for more in ((), ("--dry-run",)):
        assert error(run(*words, *more))["code"] == "positions.step_open"
    assert lab.run().error is None
    assert result(run(*words))["entries"] == 2
    lab.write("in.jsonl", [5], mode="a")
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [0, 1, 2, 3, 4, 5]


def test_an_export_with_gaps_a_damaged_one_and_a_pipeline_without_a_log_are_refused(run, lab: Lab) -> None:
    logged(lab, 40, **{"batch-size": 20, "log-segment-size": "1KB"})
    assert lab.run().error is None
    run("log", "export", "p", "gaps.log", "--from", "19")
    run("log", "export", "p", "whole.log", "--from", "20")
    (lab.root / "torn.log").write_bytes((lab.root / "whole.log").read_bytes()[:-1])
    (lab.root / "none.log").write_bytes(b"")
    fresh(lab)
    assert result(run("log", "import", "p", "gaps.log", "--dry-run", "--json"))["first"] == 19
    (lab.root / "holes.log").write_bytes((lab.root / "whole.log").read_bytes())
    data = (lab.root / "gaps.log").read_bytes()
    end = 12 + int.from_bytes(data[8:12]) + 9
    (lab.root / "holes.log").write_bytes((0).to_bytes(8) + data[8:end] + data)
    assert error(run("log", "import", "p", "holes.log", "--json"))["code"] == "log.import_gaps"
    assert error(run("log", "import", "p", "torn.log", "--json"))["code"] == "log.import_damaged"
    assert error(run("log", "import", "p", "none.log", "--json"))["code"] == "log.import_empty"
    assert error(run("log", "import", "p", "nowhere.log", "--json"))["code"] == "file.missing"
    assert result(run("log", "import", "p", "whole.log", "--json"))["entries"] == 20
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE])
    assert error(run("log", "import", "p", "whole.log", "--json"))["code"] == "log.positions_only"
