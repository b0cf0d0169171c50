"""``offsets list``, ``show``, ``mark`` and ``step`` (CASES.md, C5 to C10)."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from operating import NAMESPACE, after_bulk_error, append, build, code_of, events, offsets, snapshot
from pyspark.sql import SparkSession
from scripted import Script, scripted
from support import DECODE, Lab, destination, processor

from conduit_dagster.config.project import Project
from conduit_dagster.state.database import open_database
from conduit_dagster.state.lease import acquire


@pytest.fixture
def lab(folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Verbs that need Spark get the tests' session, and leave it open."""

    @contextmanager
    def shared(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("conduit_dagster.cli.session.spark_session", shared)
    return Lab(folder, spark)


@pytest.fixture
def script(lab: Lab) -> Script:
    return Script(lab)


def result(ran: Any) -> Any:
    assert ran.code == 0, ran.out
    return ran.envelope["result"]


def error(ran: Any) -> Any:
    assert ran.code != 0, ran.out
    found = ran.envelope["error"]
    assert found["fix"]
    return found


def fails_at_14(lab: Lab, script: Script, **more: Any) -> None:
    """C7: 9 to 13 are sent one by one, 14 goes on failing."""
    after_bulk_error(lab, script, **more)
    assert code_of(lab.run()) == "delivery.record_failed"
    script.sent()
    assert offsets(lab)["out"] == 13


# -- mark ---------------------------------------------------------------------------------------------------------


def test_c06_c8_a_marked_record_is_not_sent_and_the_rest_is(run, lab: Lab, script: Script) -> None:
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


def test_c06_c8_right_after_the_bulk_error_and_with_a_log_of_records(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script, delivery={"log": "records"})
    assert result(run("offsets", "mark", "p", "out", "14", "--json"))["offsets"] == [9, 10, 11, 12, 13, 14]
    assert lab.run().error is None
    assert script.sent() == [[15]]


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
    """What lies in the staging folder of a delivery that was partly acked must not move it on again."""
    build(lab, 16, delivery={"offset-flush-interval": "10ms"})
    script.says(acks=[[12, "upto"]])
    assert code_of(lab.run()) == "delivery.unacked"
    script.sent()
    assert result(run("offsets", "mark", "p", "out", "4", "--force", "--json"))["next"] == 5
    script.says()
    assert lab.run().error is None
    assert script.sent() == [list(range(5, 16))]


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


# -- step ---------------------------------------------------------------------------------------------------------


def test_c06_c10_a_step_sends_exactly_one_record(run, lab: Lab, script: Script) -> None:
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
    """C13: of B the record 3 is missing, the others of all namespaces are acked."""
    build(lab, 8, processors=[DECODE, NAMESPACE])
    script.says(acks=[[v, "only"] for v in (0, 1, 2, 4, 5)])
    assert code_of(lab.run()) == "delivery.unacked"
    script.says()
    script.sent()
    sent = [result(run("offsets", "step", "p", "--json"))["offset"] for _ in range(3)]
    assert sent == [3, 6, 7]
    assert script.sent() == [[3], [6], [7]]


def test_dead_letters_of_the_step_come_first(run, lab: Lab, script: Script, crashes: Any) -> None:
    build(lab, 3, processors=[DECODE, processor("no", "error", "after.i == 1", message="one")])
    crashes(lab, "before-publish")
    assert error(run("offsets", "step", "p", "--json"))["code"] == "offsets.dead_letters_first"


# -- looking, names, leases -----------------------------------------------------------------------------------------


def test_list_shows_where_each_consumer_stands(run, lab: Lab, script: Script) -> None:
    fails_at_14(lab, script)
    rows = {row["id"]: row for row in result(run("offsets", "list", "p", "--json"))["consumers"]}
    out, letters = rows["out"], rows["dead_letters"]
    assert out["sources"] == [{"id": "in", "offset": 13, "behind": 2}]
    opened = {"step": 2, "state": "split", "handled": 5, "records": 7, "next": {"source": "in", "offset": 14}}
    assert out["open"] == opened
    assert out["error"]["code"] == "delivery.record_failed"
    assert (letters["sources"][0]["offset"], letters["open"], letters["error"]) == (8, None, None)
    text = run("offsets", "list", "p").out
    assert "step 2, one by one: 5 of 7, next 14" in text


def test_show_has_every_namespace(run, lab: Lab, script: Script) -> None:
    build(lab, 16, processors=[DECODE, NAMESPACE])
    assert lab.run().error is None
    assert error(run("offsets", "show", "p", "--json"))["code"] == "usage.which_consumer"
    rows = result(run("offsets", "show", "p", "out", "--json"))["offsets"]
    assert {row["namespace"]: row["offset"] for row in rows}["*"] == 15


def test_unknown_names_get_the_nearest_one(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script)
    unknown = error(run("offsets", "mark", "p", "outt", "9", "--json"))
    assert (unknown["code"], unknown["fix"]) == ("usage.unknown_consumer", "did you mean out?")
    assert run("offsets", "mark", "p", "outt", "9").code == 2
    assert error(run("offsets", "list", "q", "--json"))["code"] == "usage.unknown_pipeline"
    refusal = error(run("offsets", "mark", "p", "out", "9", "--source", "inn", "--json"))
    assert refusal["code"] == "usage.unknown_source"


def test_a_running_pipeline_is_left_alone(run, lab: Lab, script: Script) -> None:
    after_bulk_error(lab, script)
    database = open_database(Project.find(lab.root, {}).state_url)
    lease = acquire(database, "p", 0.4)
    try:
        for words in (
            ("offsets", "mark", "p", "out", "9"),
            ("offsets", "step", "p"),
            ("positions", "rewind", "p", "--to-start"),
        ):
            ran = run(*words, "--json")
            assert (ran.code, error(ran)["code"]) == (1, "lease.held")
            assert "stop it first" in error(ran)["fix"]
        assert run("offsets", "list", "p").code == 0
    finally:
        lease.release()
        database.dispose()


def test_a_pipeline_that_never_ran(run, lab: Lab, script: Script) -> None:
    build(lab, 1)
    assert result(run("offsets", "list", "p", "--json"))["consumers"] == []
    assert error(run("offsets", "step", "p", "--json"))["code"] == "pipeline.never_ran"
    assert not (lab.root / ".conduit").exists()


def test_list_is_quick_and_starts_no_spark(lab: Lab, script: Script) -> None:
    fails_at_14(lab, script)
    code = (
        "import sys; from conduit_dagster.cli.main import main; code = main(['offsets', 'list', 'p', '--json']);"
        "print([m for m in ('pyspark.sql', 'py4j', 'dagster') if m in sys.modules]); sys.exit(code)"
    )
    began = time.monotonic()
    ran = subprocess.run([sys.executable, "-c", code], cwd=lab.root, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"
    assert time.monotonic() - began < 10  # about 1 s on an idle machine
