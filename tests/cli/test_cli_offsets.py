"""``offsets list`` and ``show``, and how all four verbs handle names and a running pipeline."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
from lab.operating import NAMESPACE, RECORDS, after_bulk_error, build, error, fails_at_14, result
from lab.scripted import Script, scripted
from lab.support import DECODE, Lab, destination, source

from conduit_dagster.state.lease import acquire

pytestmark = pytest.mark.usefixtures("shared_session")


def test_list_shows_where_each_consumer_stands(run, lab: Lab, script: Script) -> None:
    fails_at_14(lab, script)
    rows = {row["id"]: row for row in result(run("offsets", "list", "p", "--json"))["consumers"]}
    out, letters = rows["out"], rows["dead_letters"]
    assert out["sources"] == [{"id": "in", "offset": 13, "behind": 2}]
    opened = {
        "step": 2,
        "state": "split",
        "handled": 5,
        "records": 7,
        "marked": 0,
        "next": {"source": "in", "offset": 14},
    }
    assert out["open"] == opened
    assert out["error"]["code"] == "delivery.record_failed"
    assert out["error"]["fix"].endswith(": conduit-dagster offsets mark p out --offset 14 --source in")
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
    with lab.store() as database:
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
    before = _children_seconds()
    ran = subprocess.run([sys.executable, "-c", code], cwd=lab.root, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"
    assert _children_seconds() - before < 10  # about 1 s on an idle machine


def _children_seconds() -> float:
    """Processor time of processes that this one has awaited: others take any time of a clock."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_a_destination_that_catches_up_is_behind_by_that(run, lab: Lab, script: Script) -> None:
    build(lab, 16, destination(), delivery=RECORDS)
    assert lab.run().error is None
    late = scripted("late", **{"start-from": "log"})
    script.says("late", outage=[9])
    lab.pipeline(connectors=[source(), destination(), late], processors=[DECODE], delivery=RECORDS)
    assert lab.run().error is not None
    rows = {row["id"]: row for row in result(run("offsets", "list", "p", "--json"))["consumers"]}
    assert rows["late"]["sources"] == [{"id": "in", "offset": None, "behind": 16}]
    assert rows["late"]["open"]["records"] == 16
    assert rows["out"]["sources"] == [{"id": "in", "offset": 15, "behind": 0}]
    assert rows["out"]["open"] is None
    shown = result(run("positions", "show", "p", "--json"))["pipelines"][0]["sources"]
    assert [(row["id"], row["position"]) for row in shown] == [("in", 16), ("in@late", 0)]
    assert "in@late" in run("positions", "show").out
    # it can be moved past the record like any other
    script.says("late")
    assert result(run("offsets", "mark", "p", "late", "3", "--json"))["offsets"] == [0, 1, 2, 3]
    assert result(run("offsets", "step", "p", "late", "--json"))["offset"] == 4
    assert script.values("late")[-1] == 4
    assert lab.run().error is None
    assert script.values("late") == list(range(5, 16))
    rows = {row["id"]: row for row in result(run("offsets", "list", "p", "--json"))["consumers"]}
    assert rows["late"]["sources"] == [{"id": "in", "offset": 15, "behind": 0}]
    # nothing to go back to: the source itself is rewound
    assert error(run("positions", "rewind", "p", "in@late", "--to-start", "--json"))["code"] == "usage.unknown_source"
