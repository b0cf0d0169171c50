"""Steps that are logged as they are staged: log and step are equal to doing one after the other."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
import sqlalchemy as sa
from lab.logged_lab import COUNTING, build, lab_in
from lab.postgres_server import PostgresServer
from lab.support import DECODE, Crashes, Lab, destination, processor, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.engine.step_log import StepLog
from conduit_dagster.state.steps import Plan
from conduit_dagster.state.tables import logs, steps

KEY = processor("key", "field.set", field=".Payload.After.k", expression="str(key) + str(position)")
NAN = processor("nan", "field.set", field=".Payload.After.k", expression="str(after.none)")
WHOLE = {"settings": {"path": "./out.jsonl", "sdk.record.format": "opencdc/json"}}


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    return lab_in(tmp_path, spark)


def entries(lab: Lab, spark: SparkSession) -> list[dict[str, Any]]:
    rows = spark.read.parquet(str(lab.root / ".conduit" / "log" / "p" / "in")).orderBy("offset").collect()
    apart = ("timestamp", "segment")
    found = [{name: value for name, value in row.asDict().items() if name not in apart} for row in rows]
    for row in found:
        row["metadata"].pop("opencdc.readAt", None)
        row["metadata"].pop("file.path", None)
    return found


def planned(lab: Lab) -> list[tuple[str, Plan]]:
    with lab.store() as database, database.connect() as connection:
        rows = connection.execute(sa.select(steps.c.state, steps.c.plan).order_by(steps.c.step))
        return [(state, msgspec.json.decode(plan, type=Plan)) for state, plan in rows]


INPUTS = {
    "lines": ((source(),), (DECODE,)),
    "lines whose keys are read": ((source(),), (DECODE, KEY)),
    "several files": ((source("./many/*.jsonl"),), (DECODE,)),
    "documents": ((COUNTING,), (NAN,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", INPUTS)
def test_the_log_is_the_same_as_if_it_were_written_first(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    inputs, processors = INPUTS[kind]
    logs: list[Any] = []
    for name in ("at once", "first"):
        lab = lab_in(tmp_path / name, spark)
        build(lab, *inputs, processors=processors, out=destination(**WHOLE))
        if name == "first":
            monkeypatch.setattr(StepLog, "fits", staticmethod(lambda pipeline: False))
        result = lab.run()
        assert result.error is None
        assert [bool(plan.logs) for _, plan in planned(lab)] == [name == "at once"] * result.progress.steps
        logs.append(entries(lab, spark))
    assert logs[0] == logs[1]
    assert [row["offset"] for row in logs[0]] == list(range(len(logs[0])))
    assert len(logs[0]) >= 70


@pytest.mark.slow
@pytest.mark.parametrize("kind", INPUTS)
def test_what_is_staged_again_from_the_log_is_the_same(lab: Lab, crashes: Crashes, kind: str) -> None:
    """Otherwise the run would end with ``delivery.rebuild_differs``."""
    inputs, processors = INPUTS[kind]
    build(lab, *inputs, processors=processors, out=destination(**WHOLE))
    crashes(lab, "after-prepare")
    shutil.rmtree(lab.root / ".conduit" / "staging")
    for path in (*lab.root.glob("in.jsonl"), *lab.root.glob("many/*")):
        path.unlink()  # the log has what it needs
    error = lab.run().error
    # records that were not read yet are gone with the files
    assert error is None if kind == "documents" else error is not None and error.code == "file.range_gone"
    assert len(lab.documents("out.jsonl")) == (70 if kind == "documents" else 30)


def test_what_is_staged_again_is_the_same_where_keys_were_left_out(lab: Lab, crashes: Crashes) -> None:
    build(lab, out={**destination(), "plugin": "objects"})
    crashes(lab, "after-prepare")
    shutil.rmtree(lab.root / ".conduit" / "staging")
    (lab.root / "in.jsonl").unlink()
    error = lab.run().error
    assert error is not None and error.code == "file.range_gone"
    assert [row["i"] for row in lab.documents("out.jsonl")] == list(range(30))


def test_a_dead_letter_has_its_key_and_position_where_others_were_left_out(tmp_path: Path, spark: SparkSession) -> None:
    bad = processor("bad", "error", "after.i == 20", message="not this one")
    letters: list[Any] = []
    for name, out in (("all", destination(**WHOLE)), ("objects", {**destination(), "plugin": "objects"})):
        lab = lab_in(tmp_path / name, spark)
        build(lab, processors=(DECODE, bad), out=out)
        assert lab.run().error is None
        (letter,) = lab.documents("dead.jsonl")
        letters.append({name: letter["payload"]["after"][name] for name in ("position", "key", "payload")})
    assert letters[0] == letters[1]
    assert base64.b64decode(letters[0]["key"]) == b"21"


FEW = {"id": "in", "type": "source", "plugin": "few"}


def table(server: PostgresServer, check: str = "") -> dict[str, Any]:
    url = server.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE t (k bigint, i bigint {check})".encode())
    only = processor("only", "pick", fields="i")
    settings = {"url": url, "table": "t"}
    return {
        "id": "out",
        "type": "destination",
        "plugin": "builtin:postgres",
        "settings": settings,
        "processors": [only],
    }


def test_what_is_staged_again_in_other_blocks_is_the_same(
    lab: Lab, crashes: Crashes, postgres_server: PostgresServer
) -> None:
    """The log gives larger blocks than the source: origins that are staged beside rows must not show it."""
    out = table(postgres_server)
    build(lab, FEW, processors=(), out=out)
    crashes(lab, "after-prepare")
    shutil.rmtree(lab.root / ".conduit" / "staging")
    assert lab.run().error is None
    with psycopg.connect(out["settings"]["url"]) as connection:
        assert connection.execute("SELECT i FROM t ORDER BY i").fetchall() == [(i,) for i in range(70)]


def test_a_refused_record_of_a_logged_step_is_whole_in_its_dead_letter(
    lab: Lab, postgres_server: PostgresServer
) -> None:
    """With its original in the archive: without, a replay from the source is refused."""
    build(lab, FEW, processors=(), out=table(postgres_server, "CHECK (i <> 20)"))
    assert lab.run().error is None
    assert [after["i"] for _, _, after in lab.letters()] == [20]
    build(lab, FEW, processors=(processor("mend", "field.set", field=".Payload.After.i", expression="after.i + 100"),),
        out=table(postgres_server))  # fmt: skip
    lab.replay()


@pytest.mark.parametrize("point", ["after-plan", "before-log", "after-stage", "after-log-stage"])
def test_a_step_keeps_its_range_and_its_name(lab: Lab, crashes: Crashes, point: str) -> None:
    build(lab, delivery={"batch-size": 1000})
    crashes(lab, point)
    ((_, before),) = planned(lab)
    lab.write("in.jsonl", [{"i": 70}], mode="a")
    assert lab.run().error is None
    (state, after), (_, following) = planned(lab)
    assert (state, after) == ("done", before)
    assert (before.ranges[0].end, following.ranges[0].end) == (70, 71)
    assert [row["i"] for row in lab.documents("out.jsonl")] == list(range(71))


def test_a_planned_range_that_is_gone_is_named_or_given_up(lab: Lab, crashes: Crashes) -> None:
    build(lab)
    crashes(lab, "after-plan")
    lab.write("in.jsonl", [])
    error = lab.run().error
    assert error is not None
    assert error.code == "file.range_gone"
    skipping = source()
    skipping["settings"]["on-gone"] = "skip"
    build(lab, skipping)
    lab.write("in.jsonl", [{"i": 9}])
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"i": 9}]


def test_a_step_that_was_planned_so_is_finished_so_where_the_fan_in_has_changed(lab: Lab, crashes: Crashes) -> None:
    """It keeps its records and its name; later ones are planned as the file says now."""
    lab.write("two.jsonl", [{"i": i} for i in range(100, 110)])
    both = (source(), {**source("./two.jsonl"), "id": "two"})
    build(lab, *both)
    crashes(lab, "after-plan")
    ((_, first),) = planned(lab)
    assert [span.source for span in first.ranges] == ["in", "two"]
    build(lab, *both, **{"fan-in": "alternate"})
    assert lab.run().error is None
    (state, again), *later = planned(lab)
    assert (state, again) == ("done", first)
    assert later and all(len(plan.ranges) == 1 and not plan.logs for _, plan in later)
    numbers = [row["i"] for row in lab.documents("out.jsonl")]
    assert sorted(numbers) == [*range(70), *range(100, 110)]


def test_a_step_whose_log_stands_elsewhere_is_void(lab: Lab, crashes: Crashes) -> None:
    """Neither in the log nor next in it: the run continues where the log ends."""
    build(lab)
    crashes(lab, "after-plan")
    ((_, first),) = planned(lab)
    with lab.store() as database, database.begin() as connection:
        connection.execute(sa.update(logs).values(position=json.dumps(first.logs["in"].end)))
    assert lab.run().error is None
    (state, again), *_ = planned(lab)
    assert (state, again) == ("void", first)
    assert [row["i"] for row in lab.documents("out.jsonl")] == list(range(30, 70))


def test_a_nack_that_cuts_the_step_leaves_the_rest_in_the_log(lab: Lab, spark: SparkSession) -> None:
    bad = processor("bad", "error", "after.i == 20", message="not this one")
    build(lab, processors=(DECODE, bad), **{"dead-letter-queue": queue(1, 0)})
    error = lab.run().error
    assert error is not None
    assert [row["i"] for row in lab.documents("out.jsonl")] == list(range(20))
    assert len(entries(lab, spark)) == 30
    (lab.root / "in.jsonl").write_text("")
    build(lab, processors=(DECODE,))
    lab.run()
    assert [row["i"] for row in lab.documents("out.jsonl")] == list(range(30))


def test_a_source_that_miscounts_is_told_and_nothing_is_delivered(lab: Lab) -> None:
    build(lab, {**COUNTING, "plugin": "miscounting"}, processors=())
    error = lab.run().error
    assert error is not None
    assert (error.code, error.node, error.fatal) == ("source.count_wrong", "p:in", True)
    assert lab.lines("out.jsonl") == []
