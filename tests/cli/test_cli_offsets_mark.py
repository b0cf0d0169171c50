"""``offsets mark`` (CASES.md, C5 to C8)."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg
import pytest
import sqlalchemy as sa
from lab.kills import at, crashing
from lab.operating import (
    RECORDS,
    after_bulk_error,
    append,
    build,
    code_of,
    error,
    events,
    fails_at_14,
    offsets,
    result,
    snapshot,
)
from lab.postgres_server import PostgresServer
from lab.scripted import Script, scripted
from lab.support import DECODE, Lab, destination

from conduit_dagster.engine.acks import Acked
from conduit_dagster.recovery.kill_points import SETTING_BACK
from conduit_dagster.state import tables

pytestmark = pytest.mark.usefixtures("shared_session")


def test_c08_a_marked_record_is_not_sent_and_the_rest_is(run, lab: Lab, script: Script) -> None:
    fails_at_14(lab, script)
    facts = result(run("offsets", "mark", "p", "out", "14", "--json"))
    assert (facts["did"], facts["offsets"], facts["next"]) == ("marked", [14], 15)
    assert offsets(lab)["out"] == 14
    assert lab.run().error is None
    assert script.sent() == [[15]]
    assert offsets(lab)["out"] == 15
    (event,) = events(lab, "marked")
    assert (event["consumer"], event["first"], event["last"]) == ("out", 14, 14)
    assert event["by"] is not None


def test_c08_right_after_the_bulk_error_and_with_a_log_of_records(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script, delivery={"log": "records"})
    assert result(run("offsets", "mark", "p", "out", "14", "--json"))["offsets"] == [9, 10, 11, 12, 13, 14]
    assert lab.run().error is None
    assert script.sent() == [[15]]


def test_what_a_mark_says(run, lab: Lab, script: Script) -> None:
    fails_at_14(lab, script)
    said = {
        ("14", "--dry-run"): "p: out: 1 record (14) would be marked as handled; the next one is 15",
        ("15", "--dry-run"): "p: out: 2 records (14-15) would be marked as handled; its delivery would be done",
        ("--offset", "14", "--offset", "15", "--dry-run"): "p: out: 2 records (14-15) would be marked as handled; "
        "its delivery would be done",
        ("14",): "p: out: 1 record (14) is marked as handled; the next one is 15",
        ("--offset", "15"): "p: out: 1 record (15) is marked as handled; step 2 is done",
    }
    for words, text in said.items():
        assert run("offsets", "mark", "p", "out", *words).out == f"{text}\n", words


def test_marking_the_last_record_finishes_the_step(run, lab: Lab, script: Script) -> None:
    fails_at_14(lab, script)
    facts = result(run("offsets", "mark", "p", "out", "15", "--json"))
    assert (facts["delivery_done"], facts["step_done"], facts["next"]) == (True, True, None)
    assert offsets(lab) == {"out": 15, "dead_letters": 15}
    (row,) = [r for r in result(run("offsets", "list", "p", "--json"))["consumers"] if r["id"] == "out"]
    assert (row["delivered"], row["open"]) == (14, None)  # 16 records, of which two were marked
    append(lab, 16, 17)
    assert lab.run().progress.read == 1
    assert script.sent() == [[16]]


def test_a_mark_beyond_the_step_or_before_it_is_refused(run, lab: Lab, script: Script) -> None:
    fails_at_14(lab, script)
    before = snapshot(lab)
    beyond = error(run("offsets", "mark", "p", "out", "16", "--json"))
    assert beyond["code"] == "offsets.beyond_step"
    assert "9 to 15" in beyond["message"]
    assert error(run("offsets", "mark", "p", "out", "3", "--json"))["code"] == "offsets.before_step"
    assert snapshot(lab) == before


def test_backwards_only_with_force_and_then_it_is_sent_again(run, lab: Lab, script: Script) -> None:
    fails_at_14(lab, script)
    refusal = error(run("offsets", "mark", "p", "out", "11", "--json"))
    assert (refusal["code"], "--force" in refusal["fix"]) == ("offsets.backwards", True)
    assert "12 to 13" in refusal["message"]
    assert result(run("offsets", "mark", "p", "out", "11", "--force", "--json"))["offsets"] == [12, 13]
    assert offsets(lab)["out"] == 11
    script.says()
    assert lab.run().error is None
    assert script.sent() == [[12], [13], [14], [15]]


def test_backwards_over_acks_that_a_job_made_durable(run, lab: Lab, script: Script) -> None:
    """A partly acked delivery's files in the staging folder must not move it forward again."""
    build(lab, 16, delivery={"offset-flush-interval": "10ms"})
    script.says(acks=[[12, "upto"]])
    assert code_of(lab.run()) == "delivery.unacked"
    script.sent()
    assert result(run("offsets", "mark", "p", "out", "4", "--force", "--json"))["next"] == 5
    script.says()
    assert lab.run().error is None
    assert script.sent() == [list(range(5, 16))]


def after_kill(lab: Lab, script: Script, stored: int, acked: int) -> None:
    """Run until the destination has acked ``stored``; a job after it had acked more when its run was killed."""
    script.says(acks=[[stored, "upto"]])
    assert code_of(lab.run()) == "delivery.unacked"
    (folder,) = (lab.root / ".conduit" / "staging" / "p").glob("*/out")
    (folder / f"acks-{acked:016x}-00000000.json").write_bytes(msgspec.json.encode(Acked(acked + 1, ("in", acked + 1))))
    script.sent()
    script.says()


@pytest.mark.parametrize("point", SETTING_BACK)
def test_one_backwards_that_was_frozen_removes_no_acks_of_the_next_owner(
    run, lab: Lab, script: Script, point: str
) -> None:
    """It is frozen for longer than its lease; another machine runs the pipeline, and it goes on."""
    build(lab, 16)
    after_kill(lab, script, 4, 6)

    def run_elsewhere() -> None:
        with lab.store() as database, database.begin() as connection:
            column = tables.pipelines.c
            connection.execute(sa.update(tables.pipelines).values(epoch=column.epoch + 1, owner=""))
        after_kill(lab, script, 9, 12)

    with at(point, run_elsewhere):
        assert error(run("offsets", "mark", "p", "out", "2", "--force", "--json"))["code"] == "lease.lost"
    assert lab.run().error is None
    assert script.sent() == [[13, 14, 15]]


@pytest.mark.parametrize("point", SETTING_BACK)
def test_one_backwards_that_is_killed_before_its_end_changes_nothing(run, lab: Lab, script: Script, point: str) -> None:
    build(lab, 16)
    after_kill(lab, script, 4, 12)
    with crashing(point):
        run("offsets", "mark", "p", "out", "2", "--force")
    assert lab.run().error is None
    assert script.sent() == [[13, 14, 15]]


def test_backwards_in_a_range_that_is_sent_again(run, lab: Lab, script: Script) -> None:
    """What the destination had before the range stays handled."""
    build(lab, 16, delivery={"redelivery": "one-at-a-time", **RECORDS})
    assert lab.run().error is None
    run("positions", "rewind", "p", "--to-offset", "4", "--until-offset", "12", "--into", "out")
    script.says(bulk=[9])
    assert code_of(lab.run()) == "delivery.bulk_failed"
    assert code_of(lab.run()) == "delivery.record_failed"
    script.sent()
    assert result(run("offsets", "mark", "p", "out", "6", "--force", "--json"))["offsets"] == [7, 8]
    assert offsets(lab)["out"] == 15
    script.says()
    assert lab.run().error is None
    assert script.sent() == [[7], [8], [9], [10], [11]]
    assert offsets(lab)["out"] == 15


def test_going_back_over_records_that_were_skipped_is_refused(run, lab: Lab, script: Script) -> None:
    fails_at_14(lab, script)
    run("offsets", "mark", "p", "out", "14")
    assert error(run("offsets", "mark", "p", "out", "11", "--force", "--json"))["code"] == "offsets.refused_before"


def test_a_dry_run_of_a_mark_changes_nothing(run, lab: Lab, script: Script) -> None:
    fails_at_14(lab, script)
    before = snapshot(lab)
    facts = result(run("offsets", "mark", "p", "out", "15", "--dry-run", "--json"))
    assert (facts["dry_run"], facts["offsets"]) == (True, [14, 15])
    assert "would be marked" in run("offsets", "mark", "p", "out", "15", "--dry-run").out
    assert snapshot(lab) == before


def test_a_mark_without_an_open_step_is_refused(run, lab: Lab, script: Script) -> None:
    build(lab, 3)
    assert lab.run().error is None
    assert error(run("offsets", "mark", "p", "out", "1", "--json"))["code"] == "offsets.no_open_step"


def test_a_mark_for_a_destination_that_is_done_is_refused(run, lab: Lab, script: Script) -> None:
    build(lab, 4, scripted("a"), scripted("b"))
    script.says("a", bulk=[2])
    assert code_of(lab.run()) == "delivery.bulk_failed"
    assert error(run("offsets", "mark", "p", "b", "1", "--json"))["code"] == "offsets.nothing_open"


def test_records_of_an_earlier_source_are_not_skipped_unnamed(run, lab: Lab, script: Script) -> None:
    for name in ("one", "two"):
        lab.write(f"{name}.jsonl", [{"i": i} for i in range(3)])
    sources = [
        {"id": name, "type": "source", "plugin": "builtin:file", "settings": {"path": f"./{name}.jsonl"}}
        for name in ("one", "two")
    ]
    lab.pipeline(connectors=[*sources, scripted()], processors=[DECODE])
    script.says(bulk=[1])
    assert code_of(lab.run()) == "delivery.bulk_failed"
    assert error(run("offsets", "mark", "p", "out", "1", "--json"))["code"] == "usage.which_source"
    refusal = error(run("offsets", "mark", "p", "out", "1", "--source", "two", "--json"))
    assert refusal["code"] == "offsets.order"
    assert "offsets mark p out 2 --source one" in refusal["fix"]
    assert result(run("offsets", "mark", "p", "out", "2", "--source", "one", "--json"))["offsets"] == [0, 1, 2]
    assert result(run("offsets", "mark", "p", "out", "1", "--source", "two", "--json"))["offsets"] == [0, 1]


def test_a_file_takes_a_step_whole_and_dead_letters_are_not_skipped(run, lab: Lab, script: Script) -> None:
    build(lab, 3, destination("file"), scripted())
    script.says(bulk=[1])
    lab.write("file.jsonl", [])
    assert code_of(lab.run()) == "delivery.bulk_failed"
    assert error(run("offsets", "mark", "p", "dead_letters", "1", "--json"))["code"] == "offsets.dead_letters"
    assert error(run("offsets", "mark", "p", "file", "1", "--json"))["code"] == "offsets.nothing_open"


def test_a_destination_that_takes_steps_whole_can_not_be_marked(run, lab: Lab, crashes: Any) -> None:
    build(lab, 3, destination("file"))
    crashes(lab, "before-publish")
    refusal = error(run("offsets", "mark", "p", "file", "1", "--json"))
    assert (refusal["code"], refusal["node"]) == ("offsets.not_divisible", "p:file")
    assert error(run("offsets", "step", "p", "--json"))["code"] == "offsets.not_divisible"


def test_what_the_destination_holds_already_is_delivered_not_marked(run, lab: Lab, crashes: Any) -> None:
    build(lab, 3, destination("file"))
    crashes(lab, "after-publish")
    assert result(run("offsets", "mark", "p", "file", "1", "--json"))["did"] == "held"
    assert lab.run().progress.read == 3
    assert len(lab.lines("file.jsonl")) == 3


_THREE_AT_MOST = """
    CREATE FUNCTION three() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.state = 'nacked' AND (SELECT count(*) FROM conduit_deliveries WHERE state = 'nacked') = 3 THEN
            RAISE 'no more' USING ERRCODE = '57014';
        END IF;
        RETURN NEW; END $$;
    CREATE TRIGGER three BEFORE INSERT ON conduit_deliveries FOR EACH ROW EXECUTE FUNCTION three()
"""


@pytest.mark.parametrize("words", [("6",), ("--offset", "0-6")], ids=["up to", "single"])
def test_a_mark_whose_claims_fail_in_the_middle_tells_what_is_marked(
    run, lab: Lab, postgres_server: PostgresServer, words: tuple[str, ...]
) -> None:
    """The history told all of them, and after a second try those that were left once more."""
    url = postgres_server.create_database()
    settings = {"url": url, "table": "t"}
    build(lab, 8, {"id": "out", "type": "destination", "plugin": "postgres", "settings": settings})
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (i int, c text)")
        with crashing("before-publish"):
            lab.run()
        connection.execute(_THREE_AT_MOST)
        error(run("offsets", "mark", "p", "out", *words, "--json"))
        (event,) = events(lab, "marked")
        assert (event["records"], event["first"], event["last"]) == (3, 0, 2)
        connection.execute("DROP TRIGGER three ON conduit_deliveries")
        assert result(run("offsets", "mark", "p", "out", *words, "--json"))["records"] == 4
        assert [(one["first"], one["last"]) for one in events(lab, "marked")] == [(3, 6), (0, 2)]
        assert lab.run().error is None
        assert connection.execute("SELECT i FROM t").fetchall() == [(7,)]
