"""``log export`` and ``log import`` (CASES.md, C22)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from lab.chain_lab import chained, downstream
from lab.kills import crashing
from lab.operating import RECORDS, append, error, fresh, logged, offsets, result
from lab.support import DECODE, Lab, destination, processor, source

from conduit_dagster.assets.offset_gaps import offset_gaps
from conduit_dagster.commit_log.binary import LogRecord, encode_log_record
from conduit_dagster.recovery.kill_points import IMPORT


def test_an_export_of_a_backwards_range_is_refused(run, lab: Lab) -> None:
    """With --force, a good export was replaced by an empty one."""
    logged(lab, 4)
    assert lab.run().error is None
    run("log", "export", "p", "all.log")
    before = (lab.root / "all.log").read_bytes()
    refusal = error(run("log", "export", "p", "all.log", "--from", "3", "--to", "1", "--force", "--json"))
    assert refusal["code"] == "usage.range"
    assert (lab.root / "all.log").read_bytes() == before


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


def test_a_reader_of_a_log_reads_what_lies_before_offsets_that_were_never_in_it(run, lab: Lab) -> None:
    """It ended before them, with a fix that skips what it has not read yet as well."""
    logged(lab, 10)
    assert lab.run().error is None
    run("log", "export", "p", "part.log", "--from", "6")
    lab.write("few.jsonl", [{"i": i} for i in range(3)])
    lab.pipeline(id="q", connectors=[source("./few.jsonl"), destination("other")], delivery=RECORDS)
    downstream(lab, chained("q"), destination("read"), id="r")
    assert lab.run("r").error is None
    assert lab.run("q").error is None
    assert run("log", "import", "q", "part.log", "--json").envelope["error"] is None
    refusal = lab.run("r").error
    assert refusal is not None and refusal.code == "chain.log_gap"
    assert "3 to 5" in refusal.message
    assert [row["i"] for row in lab.documents("read.jsonl")] == [0, 1, 2]
    assert run("positions", "rewind", "r", "in", "--to", "6", "--force").code == 0
    assert lab.run("r").error is None
    assert [row["i"] for row in lab.documents("read.jsonl")] == [0, 1, 2, 6, 7, 8, 9]


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


@pytest.mark.parametrize("position", ["5", '{"files": [{}]}'])
def test_a_position_that_is_none_of_the_source_is_refused(run, lab: Lab, position: str) -> None:
    """The source could never be read again."""
    logged(lab, 5)
    assert lab.run().error is None
    run("log", "export", "p", "all.log")
    fresh(lab)
    words = ("log", "import", "p", "all.log", "--position", position, "--json")
    assert error(run(*words, "--dry-run"))["code"] == "positions.invalid"
    assert error(run(*words))["code"] == "positions.invalid"
    assert result(run("log", "import", "p", "all.log", "--json"))["entries"] == 5
    append(lab, 5, 6)
    assert lab.run().progress.read == 6


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


def large_import(run: Any, lab: Lab) -> Path:
    """Export a log that an import makes three segments of; return the folder of the log to import into."""
    logged(lab, 9_000)
    assert lab.run().error is None
    run("log", "export", "p", "all.log")
    fresh(lab, **{"log-segment-size": "10KB"})
    return lab.root / ".conduit" / "log" / "p" / "in"


def test_a_failed_import_leaves_no_files(run, lab: Lab) -> None:
    """A disk that is full stayed full, and each attempt left more."""
    log = large_import(run, lab)
    log.mkdir(parents=True)
    obstacle = log / f"segment={8192:020d}"
    obstacle.touch()
    assert error(run("log", "import", "p", "all.log", "--json"))["code"].startswith("file.")
    assert list(log.rglob("*.parquet")) == []
    obstacle.unlink()
    assert run("log", "import", "p", "all.log").code == 0
    assert len(list(log.rglob("*.parquet"))) == 3


@pytest.mark.parametrize("point", IMPORT)
def test_what_a_killed_import_left_is_removed_by_the_next(run, lab: Lab, point: str) -> None:
    log = large_import(run, lab)
    with crashing(point):
        run("log", "import", "p", "all.log")
    left = {path.name for path in log.rglob("*.parquet")}
    assert left
    assert run("log", "import", "p", "all.log").code == 0
    assert len(list(log.rglob("*.parquet"))) == 3
    assert not left & {path.name for path in log.rglob("*.parquet")}


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


def test_duplicates_are_known_behind_offsets_that_an_import_skips(run, lab: Lab) -> None:
    """The source has another generation then, as behind a rewind, which forgets them; but nothing is read again."""
    lab.write("in.jsonl", [{"i": i} for i in range(3)])
    once = processor("once", "deduplicate", **{"key": "after.i", "window.records": "100"})
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE, once], delivery=RECORDS)
    assert lab.run().error is None
    found = [LogRecord(10 + place, 1_491_252_302, 1, b"", b'{"i": %d}' % place) for place in range(5)]
    (lab.root / "foreign.log").write_bytes(b"".join(map(encode_log_record, found)))
    assert result(run("log", "import", "p", "foreign.log", "--as", "raw", "--json"))["first"] == 10
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"i": i} for i in range(5)]


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
