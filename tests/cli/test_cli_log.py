"""``log current``, ``oldest``, ``show`` and ``compact`` (CASES.md, C9, C15, C16, C18)."""

from __future__ import annotations

import base64
import json
import shutil
from typing import Any

import pytest
import sqlalchemy as sa
from lab.kills import at, crashing
from lab.operating import NAMESPACE, RECORDS, after_bulk_error, build, error, events, fresh, logged, result, snapshot
from lab.scripted import Script
from lab.support import DECODE, Lab, destination, source

from conduit_dagster.state import tables


def value_of(entry: dict[str, Any]) -> int:
    after = entry["record"]["payload"]["after"]
    return (json.loads(base64.b64decode(after)) if isinstance(after, str) else after)["i"]


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
    assert all(row["time"].endswith("Z") for row in rows)
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
    handled = error(run("log", "show", "p", "--to", "1", "--json"))
    assert (handled["code"], "begins at offset 4" in handled["message"]) == ("usage.range", True)
    assert run("log", "show", "p", "--from", "-1").code == 2
    assert error(run("log", "show", "p", "--source", "inn", "--json"))["fix"] == "did you mean in?"


@pytest.mark.parametrize(
    "words",
    [
        ("log", "show", "p", "--to", str(2**63)),
        ("log", "show", "p", "--limit", str(2**63)),
        ("log", "export", "p", "all.log", "--to", str(2**64)),
        ("dlq", "list", "p", "--limit", str(2**63)),
        ("dlq", "show", f"p/{2**63}.1"),
        ("dlq", "discard", "p", "--id", f"p/1.{2**64}", "--note", "none"),
        ("pipelines", "history", "p", "--limit", str(2**63)),
    ],
)
def test_a_number_that_no_store_can_hold_is_a_mistake_of_usage(run, lab: Lab, words: tuple[str, ...]) -> None:
    logged(lab, 1)
    assert lab.run().error is None
    ran = run(*words, "--json")
    assert (ran.code, error(ran)["code"].split(".")[0]) == (2, "usage")


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


def with_segments(run: Any, lab: Lab) -> None:
    """Import a log of two whole segments: a run compacts those that it closes itself."""
    logged(lab, 9_000)
    assert lab.run().error is None
    run("log", "export", "p", "all.log")
    fresh(lab, **{"log-segment-size": "10KB"})
    run("log", "import", "p", "all.log")


def test_compaction_keeps_the_last_entry_and_a_dry_run_counts(run, lab: Lab) -> None:
    """C15 and C16."""
    with_segments(run, lab)
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


@pytest.mark.parametrize("killed", [1, 2])
def test_what_a_killed_compaction_removed_is_in_the_history(run, lab: Lab, killed: int) -> None:
    with_segments(run, lab)
    assert lab.run().error is None
    with crashing("after-compact-swap", killed):
        run("log", "compact", "p")
    assert [one["entries"] for one in events(lab, "log_compacted")] == [killed * 4095]


def test_c18_reading_from_what_is_gone_gives_the_next_surviving_entry(run, lab: Lab) -> None:
    logged(lab, 40, **{"batch-size": 20, "log-segment-size": "1KB"})
    assert lab.run().error is None
    entries = result(run("log", "show", "p", "--from", "3", "--to", "21", "--json"))["entries"]
    assert [row["offset"] for row in entries] == [19, 20, 21]
    gone = error(run("positions", "rewind", "p", "--to-offset", "3", "--json"))
    assert (gone["code"], "--to-offset 20" in gone["fix"]) == ("log.gone", True)


def test_a_frozen_compaction_tells_that_its_lease_is_lost(run, lab: Lab) -> None:
    """Files that the next owner had replaced were told as missing, with the command that gives their entries up."""
    with_segments(run, lab)
    assert lab.run().error is None

    def compact_elsewhere() -> None:
        with lab.store() as database, database.begin() as connection:
            mine = tables.pipelines.c
            connection.execute(sa.update(tables.pipelines).values(epoch=mine.epoch + 1, owner=""))
        assert run("log", "compact", "p").code == 0

    with at("after-compact-swap", compact_elsewhere):
        assert error(run("log", "compact", "p", "--json"))["code"] == "lease.lost"


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
