"""``positions show`` and ``rewind``."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from lab.kept import leave_at
from lab.operating import NAMESPACE, RECORDS, after_bulk_error, append, build, error, events, offsets, result, snapshot
from lab.scripted import Script, scripted
from lab.support import DECODE, Lab, destination, queue, source

from conduit_dagster.state.tables import kept_values


def source_row(run: Any, name: str = "in") -> Any:
    rows = result(run("positions", "show", "p", "--json"))["pipelines"][0]["sources"]
    return next(row for row in rows if row["id"] == name)


def values(lab: Lab) -> list[int]:
    return [row["i"] for row in lab.documents("out.jsonl")]


def test_show_has_position_generation_lag_and_collections(run, lab: Lab) -> None:
    build(lab, 4, destination(), processors=[])
    lab.pipeline(connectors=[source(processors=[DECODE, NAMESPACE]), destination()], **{"dead-letter-queue": queue()})
    assert lab.run().error is None
    append(lab, 4, 5)
    row = source_row(run)
    assert (row["offset"], row["log"], row["joined"]) == (4, None, None)
    assert row["position"]["files"][0]["line"] == 4
    assert (row["lag"], row["lag_unit"]) == (len(lab.lines("in.jsonl")[4]) + 1, "bytes")
    assert row["collections"] == [
        {"namespace": "A", "mode": "sync", "offset": 1},
        {"namespace": "B", "mode": "sync", "offset": 3},
    ]
    text = run("positions", "show").out
    assert "collection" in text
    assert "sync" in text


def test_show_a_log_and_a_pipeline_that_never_ran(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script, delivery=RECORDS)
    lab.pipeline(id="q", connectors=[source(), destination("q")])
    log = source_row(run)["log"]
    assert (log["logged_upto"], log["handled_upto"], log["waiting"]) == (15, 8, 7)
    ran = run("positions", "show")
    assert "never ran: q" in ran.out
    assert "up to 15, handled up to 8" in ran.out


def test_to_start_reads_everything_again_under_a_new_generation(run, lab: Lab) -> None:
    build(lab, 3, destination())
    assert lab.run().error is None
    before, first = snapshot(lab), source_row(run)["generation"]
    facts = result(run("positions", "rewind", "p", "--to-start", "--dry-run", "--json"))
    assert (facts["dry_run"], facts["now"]) == (True, {"seen": 0, "files": []})
    assert facts["generation"] > first
    assert snapshot(lab) == before
    assert result(run("positions", "rewind", "p", "in", "--to-start", "--json"))["changed"] is True
    assert source_row(run)["collections"] == []
    assert lab.run().progress.read == 3
    assert values(lab) == [0, 1, 2, 0, 1, 2]
    # offsets count on over all generations
    assert offsets(lab)["out"] == 5
    (event,) = events(lab, "rewound")
    second = event["generation"]
    assert (event["source"], second > first) == ("in", True)
    assert result(run("positions", "rewind", "p", "--to-start", "--json"))["generation"] > second


def test_back_to_a_position_and_forward_only_with_force(run, lab: Lab) -> None:
    build(lab, 3, destination())
    assert lab.run().error is None
    early = json.dumps(source_row(run)["position"])
    append(lab, 3, 6)
    assert lab.run().error is None
    late = json.dumps(source_row(run)["position"])
    assert result(run("positions", "rewind", "p", "--to", late, "--json"))["changed"] is False
    assert result(run("positions", "rewind", "p", "--to", early, "--json"))["changed"] is True
    refusal = error(run("positions", "rewind", "p", "--to", late, "--json"))
    assert (refusal["code"], "3 records" in refusal["message"]) == ("positions.forward", True)
    assert lab.run().progress.read == 3
    run("positions", "rewind", "p", "--to", early)
    assert result(run("positions", "rewind", "p", "--to", late, "--force", "--json"))["skipped"] == 3
    assert lab.run().progress.read == 0
    assert values(lab) == [0, 1, 2, 3, 4, 5, 3, 4, 5]


def test_a_prepared_step_is_never_planned_anew(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script)
    before = snapshot(lab)
    refusal = error(run("positions", "rewind", "p", "--to-start", "--force", "--json"))
    assert (refusal["code"], "run it once first" in refusal["fix"]) == ("positions.step_open", True)
    assert snapshot(lab) == before


def test_a_planned_step_gives_way(run, lab: Lab, crashes: Any) -> None:
    build(lab, 3, destination())
    assert lab.run().error is None
    append(lab, 3, 4)
    crashes(lab, "after-plan")
    assert run("positions", "rewind", "p", "--to-start").code == 0
    assert lab.run().progress.read == 4
    assert values(lab) == [0, 1, 2, 0, 1, 2, 3]


def test_nonsense_is_refused(run, lab: Lab) -> None:
    build(lab, 3, destination())
    assert lab.run().error is None
    before = snapshot(lab)
    place = source_row(run)["position"]
    wrong = {**place, "files": [{**place["files"][0], "mark": "0" * 64}]}
    for position in ("7", '{"files": 3}', json.dumps(wrong), "null"):
        refusal = error(run("positions", "rewind", "p", "--to", position, "--force", "--json"))
        assert refusal["code"] == "positions.invalid", position
    assert error(run("positions", "rewind", "p", "--to", "{", "--json"))["code"] == "usage.position"
    assert error(run("positions", "rewind", "p", "--json"))["code"] == "usage.position"
    assert error(run("positions", "rewind", "p", "--to-start", "--to", "1", "--json"))["code"] == "usage.position"
    assert error(run("positions", "rewind", "p", "--to-offset", "1", "--json"))["code"] == "positions.no_offsets"
    assert error(run("positions", "rewind", "p", "inn", "--to-start", "--json"))["fix"] == "did you mean in?"
    assert snapshot(lab) == before


def test_a_source_whose_positions_are_numbers_goes_to_an_offset(run, lab: Lab) -> None:
    settings = {"recordCount": "5", "format.type": "structured", "format.options.id": "int"}
    generator = {"id": "in", "type": "source", "plugin": "builtin:generator", "settings": settings}
    lab.pipeline(connectors=[generator, destination()])
    assert lab.run().error is None
    made = lab.lines("out.jsonl")
    assert result(run("positions", "rewind", "p", "--to-offset", "3", "--json"))["now"] == 3
    assert lab.run().progress.read == 2
    assert lab.lines("out.jsonl") == [*made, *made[3:]]
    assert error(run("positions", "rewind", "p", "--to", "9", "--json"))["code"] == "positions.forward"


def test_in_a_log_the_offsets_go_back_too(run, lab: Lab) -> None:
    build(lab, 10, destination(), delivery=RECORDS)
    assert lab.run().error is None
    assert error(run("positions", "rewind", "p", "--to-offset", "11", "--json"))["code"] == "log.beyond_end"
    facts = result(run("positions", "rewind", "p", "--to-offset", "7", "--json"))
    assert (facts["was"], facts["now"], facts["offsets"]) == (10, 7, {"in": 7})
    assert offsets(lab) == {"out": 6, "dead_letters": 6}
    assert lab.run().progress.read == 3
    assert values(lab) == [*range(10), 7, 8, 9]
    assert offsets(lab) == {"out": 9, "dead_letters": 9}
    assert result(run("positions", "rewind", "p", "--to-start", "--json"))["now"] == 0
    assert offsets(lab) == {}
    refusal = error(run("positions", "rewind", "p", "--to-offset", "4", "--json"))
    assert "4 records" in refusal["message"]
    assert result(run("positions", "rewind", "p", "--to-offset", "4", "--force", "--json"))["skipped"] == 4
    assert lab.run().progress.read == 6
    assert source_row(run)["offset"] == 10


def test_in_a_log_a_time_is_a_place(run, lab: Lab) -> None:
    build(lab, 10, destination(), delivery=RECORDS)
    assert lab.run().error is None
    between = datetime.now(UTC)
    append(lab, 10, 14)
    assert lab.run().error is None
    ahead = (between + timedelta(hours=1)).isoformat()
    assert result(run("positions", "rewind", "p", "--to-time", ahead, "--json"))["changed"] is False
    assert result(run("positions", "rewind", "p", "--to-time", "2h", "--dry-run", "--json"))["now"] == 0
    facts = result(run("positions", "rewind", "p", "--to-time", between.isoformat(), "--json"))
    assert (facts["was"], facts["now"], facts["offsets"]) == (14, 10, {"in": 10})
    assert error(run("positions", "rewind", "p", "--to-time", ahead, "--json"))["code"] == "positions.forward"
    assert error(run("positions", "rewind", "p", "--to-time", "soon", "--json"))["code"] == "usage.since"
    assert lab.run().progress.read == 4
    assert values(lab) == [*range(14), *range(10, 14)]


def test_without_a_log_no_time_is_known(run, lab: Lab) -> None:
    build(lab, 4, destination())
    assert lab.run().error is None
    refusal = error(run("positions", "rewind", "p", "--to-time", "2h", "--json"))
    assert (refusal["code"], "log: records" in refusal["fix"]) == ("positions.no_times", True)


def test_a_join_goes_back_with_all_its_members(run, lab: Lab, script: Script) -> None:
    for name in ("a", "b"):
        lab.write(f"{name}.jsonl", [{"i": f"{name}{i}"} for i in range(3)])
    sources = [
        {"id": name, "type": "source", "plugin": "builtin:file", "settings": {"path": f"./{name}.jsonl"},
         "processors": [DECODE]}
        for name in ("a", "b")
    ]  # fmt: skip
    lab.write("b.jsonl", [{"i": "b3"}], mode="a")
    lab.pipeline(connectors=[*sources, destination()], **{"fan-in": "join", "dead-letter-queue": queue()})
    assert lab.run().error is None
    assert len(lab.lines("out.jsonl")) == 3
    rows = {row["id"]: row for row in result(run("positions", "show", "p", "--json"))["pipelines"][0]["sources"]}
    assert rows["a+b"]["position"] == {"a": 3, "b": 3}
    assert (rows["b"]["joined"], rows["b"]["log"]["waiting"]) == ("a+b", 1)
    assert error(run("positions", "rewind", "p", "--to-offset", "1", "--json"))["code"] == "positions.joined"
    assert error(run("positions", "rewind", "p", "--to", '{"a": 1}', "--json"))["code"] == "positions.invalid"
    assert result(run("positions", "rewind", "p", "--to-time", "1h", "--dry-run", "--json"))["now"] == {"a": 0, "b": 0}
    facts = result(run("positions", "rewind", "p", "b", "--to", '{"a": 2, "b": 2}', "--json"))
    assert (facts["source"], facts["now"]) == ("a+b", {"a": 2, "b": 2})
    assert lab.run().error is None
    lines = lab.lines("out.jsonl")
    assert len(lines) == 4
    assert json.loads(lines[3]) == json.loads(lines[2])
    run("positions", "rewind", "p", "--to-start")
    assert lab.run().error is None
    assert len(lab.lines("out.jsonl")) == 7
    merged: dict[str, Any] = {"connectors": [*sources, destination()], "delivery": {"log": "records"}}
    lab.pipeline(**merged)
    refused = lab.run().error
    assert refused is not None and refused.fix is not None
    assert "positions rewind" in refused.fix, "a record of b waits, decoded"
    lab.pipeline(connectors=[*sources, destination()], **{"fan-in": "join"})
    run("positions", "rewind", "p", "--to", '{"a": 3, "b": 4}', "--force")
    lab.pipeline(**merged)
    assert lab.run().error is None


def test_a_second_pass_reaches_a_destination_that_keeps_hashes(run, lab: Lab, script: Script) -> None:
    """A new generation gives new delivery hashes; without it a record would count as delivered."""
    build(lab, 2, scripted())
    assert lab.run().error is None
    first = lab.documents("out.sent")
    run("positions", "rewind", "p", "--to-start")
    assert lab.run().error is None
    second = lab.documents("out.sent")[len(first) :]
    assert [row["values"] for row in second] == [row["values"] for row in first]
    assert second[0]["hash"] != first[0]["hash"]


def many_files(lab: Lab, count: int) -> None:
    """A folder; each step reads two of its files."""
    for number in range(count):
        lab.write(f"in/{number:02d}.jsonl", [{"i": number}])
    delivery = {"batch-size": 2}
    lab.pipeline(connectors=[source("./in/"), destination()], delivery=delivery, **{"dead-letter-queue": queue()})


def test_a_collection_is_complete_once_all_its_files_are_read(run, lab: Lab) -> None:
    """From the source's own records of its files; also shows one of which nothing was read yet."""
    settings = {"path": "./in/", "collection": "^([a-z]+)-"}
    for name in ("bills-1", "orders-1"):
        lab.write(f"in/{name}.jsonl", [{"i": 1}])
    lab.pipeline(connectors=[source() | {"settings": settings}, destination()], **{"dead-letter-queue": queue()})
    assert lab.run().error is None
    for name in ("orders-2", "trips-1"):
        lab.write(f"in/{name}.jsonl", [{"i": 2}])
    assert source_row(run)["collections"] == [
        {"namespace": "bills", "mode": "complete", "offset": 0},
        {"namespace": "orders", "mode": "copy", "offset": 1},
        {"namespace": "trips", "mode": "copy", "offset": None},
    ]
    assert "trips" in run("positions", "show").out


def many_parquet_files(lab: Lab, first: int, stop: int) -> None:
    """As above, for the source of rows."""
    (lab.root / "in").mkdir(exist_ok=True)
    for number in range(first, stop):
        pq.write_table(pa.table({"i": [number]}), lab.root / "in" / f"{number:02d}.parquet")
    rows = {**source("./in/"), "plugin": "builtin:parquet"}
    lab.pipeline(connectors=[rows, destination()], delivery={"batch-size": 2}, **{"dead-letter-queue": queue()})


@pytest.mark.slow
def test_files_that_were_read_completely_are_counted_and_read_again_after_a_rewind(
    run, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are no longer in the position: it refers to lists, which rewinds and lags look up."""
    leave_at(monkeypatch, 1)
    many_files(lab, 8)
    assert lab.run().error is None
    row = source_row(run)
    assert [file["name"] for file in row["position"]["files"]] == ["06.jsonl", "07.jsonl"]
    assert (row["counts"], row["lag"]) == ({"files_read": 8, "files_unread": 0}, 0)
    assert "8 files read, 0 files unread" in " ".join(run("positions", "show").out.split())
    early = json.dumps(row["position"])
    many_files(lab, 13)
    assert source_row(run)["lag"] == sum(
        (lab.root / "in" / f"{number:02d}.jsonl").stat().st_size for number in range(8, 13)
    )
    assert lab.run().error is None
    late = json.dumps(source_row(run)["position"])
    assert result(run("positions", "rewind", "p", "--to", early, "--json"))["changed"] is True
    refusal = error(run("positions", "rewind", "p", "--to", late, "--json"))
    assert (refusal["code"], "5 records" in refusal["message"]) == ("positions.forward", True)
    assert lab.run().progress.read == 5
    assert result(run("positions", "rewind", "p", "--to-start", "--json"))["changed"] is True
    assert lab.run().progress.read == 13


@pytest.mark.slow
def test_parquet_files_that_were_read_are_counted_and_read_again_after_a_rewind(
    run, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, by name and footer; the last position is printed, and stays valid."""
    leave_at(monkeypatch, 1)
    many_parquet_files(lab, 0, 8)
    assert lab.run().error is None
    row = source_row(run)
    assert [file["name"] for file in row["position"]["files"]] == ["06.parquet", "07.parquet"]
    assert (row["counts"], row["lag"]) == ({"files_read": 8, "files_unread": 0}, 0)
    early = json.dumps(row["position"])
    many_parquet_files(lab, 8, 13)
    assert source_row(run)["lag"] == 5
    assert lab.run().error is None
    late = json.dumps(source_row(run)["position"])
    assert result(run("positions", "rewind", "p", "--to", early, "--json"))["changed"] is True
    refusal = error(run("positions", "rewind", "p", "--to", late, "--json"))
    assert (refusal["code"], "5 records" in refusal["message"]) == ("positions.forward", True)
    assert lab.run().progress.read == 5
    assert result(run("positions", "rewind", "p", "--to-start", "--json"))["changed"] is True
    assert lab.run().progress.read == 13
    assert values(lab) == [*range(13), *range(8, 13), *range(13)]


def test_a_position_whose_lists_are_gone_is_refused(run, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """So does a run that needs them; it says how to start over."""
    leave_at(monkeypatch, 1)
    many_files(lab, 8)
    assert lab.run().error is None
    printed = json.dumps(source_row(run)["position"])
    many_files(lab, 10)
    assert lab.run().error is None
    with lab.store() as database, database.begin() as connection:
        connection.execute(sa.delete(kept_values))
    assert source_row(run)["lag"] is None
    refusal = error(run("positions", "rewind", "p", "--to", printed, "--json"))
    assert (refusal["code"], "list of files" in refusal["message"]) == ("positions.invalid", True)
    failed = lab.run().error
    assert failed is not None
    assert (failed.code, failed.node, failed.fatal) == ("file.list_gone", "p:in", True)
    assert "conduit-dagster positions rewind p in --to-start" in (failed.fix or "")
    assert result(run("positions", "rewind", "p", "in", "--to-start", "--json"))["changed"] is True
    assert lab.run().progress.read == 10


def test_one_destination_is_sent_a_range_again(run, lab: Lab) -> None:
    build(lab, 5, destination(), destination("second"), delivery=RECORDS)
    assert lab.run().error is None
    facts = result(run("positions", "rewind", "p", "--to-offset", "2", "--into", "second", "--json"))
    assert (facts["source"], facts["destination"], facts["first"], facts["upto"]) == ("in", "second", 2, 5)
    assert offsets(lab)["second"] == 4, "the records that it has count on"
    assert lab.run().error is None
    assert [row["i"] for row in lab.documents("second.jsonl")] == [0, 1, 2, 3, 4, 2, 3, 4]
    assert values(lab) == list(range(5))
    rewind = ("positions", "rewind", "p", "--to-start", "--into", "second")
    said = run(*rewind, "--until-offset", "2", "--dry-run").out
    assert "second would be sent offsets 0 to 1 of in again (2 entries)" in said
    assert "second: there is nothing to send again" in run(*rewind, "--until-time", "2020-01-01").out
    assert run(*rewind, "--until-time", "0s").code == 0
    given_up = run("positions", "rewind", "p", "--to-offset", "5", "--into", "second", "--force", "--dry-run").out
    assert "second would be sent nothing of in again: what was left of it is given up" in given_up
    [event] = events(lab, "sent_again")[:1]
    assert "sent_again: second, offsets 2 to 4 of in" in run("pipelines", "history", "p").out
    assert event["consumer"] == "second"


def test_what_is_read_again_is_counted_again(run, lab: Lab) -> None:
    """Although a log's offsets, and those of a range for one destination, go back."""
    build(lab, 16, destination(), delivery=RECORDS)

    def counted() -> tuple[int, int, str]:
        (row,) = result(run("pipelines", "list", "--no-lag", "--json"))["pipelines"]
        (source,) = result(run("pipelines", "describe", "p", "--json"))["sources"]
        assert source["records"] == source["acked"] + source["nacked"]
        return row["records"], source["records"], run("metrics").out

    assert lab.run().error is None
    assert run("positions", "rewind", "p", "--to-offset", "6").code == 0
    assert counted()[:2] == (16, 16)
    assert lab.run().error is None
    assert counted()[:2] == (26, 26)
    for again in (30, 34):
        assert run("positions", "rewind", "p", "--into", "out", "--to-offset", "12").code == 0
        assert counted()[0] == again - 4
        assert lab.run().error is None
        assert counted()[:2] == (again, 26)
    assert 'records_read_total{pipeline="p",source="in"} 26.0' in counted()[2]
    assert 'records_read_total{pipeline="p",source="in@out"} 8.0' in counted()[2]


def test_a_range_needs_one_destination(run, lab: Lab) -> None:
    build(lab, 2, destination(), delivery=RECORDS)
    assert lab.run().error is None
    refused = error(run("positions", "rewind", "p", "--to-start", "--until-offset", "1", "--json"))
    assert (refused["code"], refused["fix"]) == (
        "usage.until",
        "name it: --into DESTINATION, in a job into: DESTINATION",
    )
    both = ("--until-offset", "1", "--until-time", "1h")
    code = error(run("positions", "rewind", "p", "--to-start", "--into", "out", *both, "--json"))["code"]
    assert code == "usage.position"
