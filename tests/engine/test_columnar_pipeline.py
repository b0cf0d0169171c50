"""Parquet through a pipeline: as columns if nothing needs documents, each row once wherever a run is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from lab.choice import some
from lab.kills import crashing, hooked
from lab.support import Lab, destination, processor, queue
from pyspark.sql import SparkSession

COUNT = 40


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    write(lab, "a", range(25))
    write(lab, "b", range(25, COUNT))
    return lab


def write(lab: Lab, name: str, numbers: range) -> None:
    path = lab.root / "in" / f"{name}.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"i": list(numbers), "s": [str(i) for i in numbers]}), path, row_group_size=7)


INPUT = {"id": "in", "type": "source", "plugin": "builtin:parquet", "settings": {"path": "in"}}


def out(kind: str = "parquet", name: str = "p", **settings: str) -> dict[str, Any]:
    """The folder or table ``NAME.out``."""
    found = {"path": f"./{name}.out", **settings}
    return {"id": "out", "type": "destination", "plugin": f"builtin:{kind}", "settings": found}


def build(lab: Lab, kind: str = "parquet", name: str = "p", **more: Any) -> None:
    """Ten rows a step into ``NAME.out``."""
    usual: dict[str, Any] = {
        "connectors": [INPUT, out(kind, name)],
        "delivery": {"batch-size": 10, "strategy": "exactly-once"},
        "dead-letter-queue": queue(path=f"./{name}-dead.jsonl"),
    }
    lab.pipeline(id=name, **{**usual, **more})


def rows(lab: Lab, kind: str = "parquet", name: str = "p") -> list[Any]:
    path = lab.root / f"{name}.out"
    files = sorted(path.glob("step=*/*.parquet")) if kind == "parquet" else _named(DeltaTable(path))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def _named(table: DeltaTable) -> list[str]:
    return sorted(uri.removeprefix("file://") for uri in table.file_uris())


ALL = [{"i": i, "s": str(i)} for i in range(COUNT)]


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize("log", ["positions", "records"])
def test_each_row_once_over_steps_and_runs(lab: Lab, kind: str, log: str) -> None:
    build(lab, kind, delivery={"batch-size": 10, "strategy": "exactly-once", "log": log})
    assert lab.run().error is None
    assert rows(lab, kind) == ALL
    write(lab, "c", range(40, 42))
    result = lab.run()
    assert result.error is None and result.progress.read == 2
    assert rows(lab, kind) == [*ALL, {"i": 40, "s": "40"}, {"i": 41, "s": "41"}]


@pytest.mark.slow
@pytest.mark.parametrize("kind", some(["parquet"], ["delta"]))
def test_killed_at_each_line(lab: Lab, kind: str) -> None:
    passed = Counter[str]()
    build(lab, kind, "whole")
    with hooked(lambda point, pipeline: passed.update([point])):
        assert lab.run("whole").error is None
    del passed["after-lease"]  # a crash in this process keeps the lease
    for number, point in enumerate(passed):
        name = f"p{number}"
        build(lab, kind, name)
        with crashing(point, min(passed[point], 2)):
            lab.run(name)
        assert lab.run(name).error is None
        assert rows(lab, kind, name) == ALL, point


def test_staging_that_is_lost_is_staged_the_same_again(lab: Lab) -> None:
    build(lab)
    with crashing("after-prepare", 2):
        lab.run()
    for part in [path for path in lab.root.rglob("*-*.parquet") if ".staging" in path.parts]:
        part.unlink()
    assert lab.run().error is None
    assert rows(lab) == ALL


def test_a_row_that_does_not_fit_is_a_dead_letter_and_comes_back(lab: Lab) -> None:
    """The others continue; replayed, it is a document, beside rows that were columns."""
    rest = pa.table({"i": [40, 41], "s": ["40", "41"], "late": [1, 2]})
    pq.write_table(rest, lab.root / "in" / "c.parquet")
    columns = {"columns": "i:long, s:string"}
    build(lab, connectors=[INPUT, out(**columns)])
    assert lab.run().error is None
    assert rows(lab) == ALL
    assert [letter["metadata"]["conduit.dlq.nack.error"] for letter in lab.documents("p-dead.jsonl")] == [
        "no column for the field late"
    ] * 2
    build(lab, connectors=[INPUT, out(**columns, **{"unknown-fields": "ignore"})])
    assert lab.replay()["replayed"] == 2
    assert rows(lab) == [*ALL, {"i": 40, "s": "40"}, {"i": 41, "s": "41"}]


SET = processor("set", "field.set", field=".Metadata.x", value="1")
DOCUMENTS: list[Callable[[Any], dict[str, Any]]] = [
    lambda _: {"processors": [SET]},
    lambda out: {"connectors": [INPUT | {"processors": [SET]}, out]},
    lambda out: {"connectors": [INPUT, out | {"processors": [SET]}]},
    lambda out: {"connectors": [INPUT, out | {"condition": "True"}]},
    lambda out: {"connectors": [INPUT, out, destination("second")]},
    lambda _: {"delivery": {"log": "records"}},
]


@pytest.mark.parametrize("asks", [None, *range(len(DOCUMENTS))])
def test_rows_stay_columns_where_nothing_asks_for_documents(lab: Lab, asks: int | None) -> None:
    """No document can hold infinity: there it is text, for which there is no column; as a column it arrives."""
    infinite = pa.table({"i": pa.array([COUNT]), "s": ["40"], "x": [float("inf")]})
    pq.write_table(infinite, lab.root / "in" / "0.parquet")
    columns = out(columns="i:long, s:string, x:double")
    build(lab, **{"connectors": [INPUT, columns], **({} if asks is None else DOCUMENTS[asks](columns))})
    bound = lab.catalogue().get("p")
    assert bound is not None
    (node,) = bound.compiled.inputs
    assert bound.compiled.takes_rows(node) == (asks is None)
    assert lab.run().error is None
    arrived = [row["x"] for row in rows(lab) if row["x"] is not None]
    assert arrived == ([float("inf")] if asks is None else [])
    assert len(lab.lines("p-dead.jsonl")) == (0 if asks is None else 1)
    assert [row["i"] for row in rows(lab) if row["i"] < COUNT] == list(range(COUNT))
