"""Both sides of a comparison with plain Spark do the same work: the same documents for every shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from benchmarks import table
from benchmarks.bench import Bench
from benchmarks.measures import MEASURES
from benchmarks.shapes import SHAPES, SIZES, Shape
from benchmarks.sizes import sides_of, sizes, source_of

_USUAL = [shape for shape in SHAPES if not shape.is_large]


def _bench(work: Path, spark: SparkSession | None = None) -> Bench:
    bench = Bench(work, records=1_000, rounds=1, steps=1)
    if spark is not None:
        bench.__dict__["spark"] = spark
    return bench


def _present(value: Any) -> Any:
    """Spark omits nulls."""
    if isinstance(value, dict):
        return {name: _present(one) for name, one in value.items() if one is not None}
    return [_present(one) for one in value] if isinstance(value, list) else value


def _documents(folder: Path) -> dict[int, Any]:
    lines = [line for part in folder.rglob("part-*") for line in part.read_text().splitlines()]
    documents = {document["id"]: _present(document) for document in map(json.loads, lines)}
    assert len(documents) == len(lines)
    return documents


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_record_has_the_size_of_its_shape(shape: Shape) -> None:
    lines = [shape.line(i) for i in range(0, 20_000, 97)]
    assert sum(len(line.encode()) for line in lines) / len(lines) == pytest.approx(shape.size, rel=0.1)
    assert all(line.endswith("\n") and json.loads(line) for line in lines)


@pytest.mark.parametrize("shape", _USUAL, ids=lambda shape: shape.name)
def test_an_input_is_bounded_and_so_is_what_is_written(shape: Shape) -> None:
    assert shape.records(1_000_000) * shape.size * shape.destinations <= 200_000_000


def test_small_files_have_ten_kilobytes_and_there_are_ten_thousand() -> None:
    (shape,) = (shape for shape in SHAPES if shape.records_per_file)
    assert shape.records(1_000_000) / shape.records_per_file == 10_000
    assert shape.records_per_file * shape.size == 10_000


def test_a_folder_has_as_many_files_as_were_asked_for(tmp_path: Path) -> None:
    (shape,) = (shape for shape in SHAPES if shape.records_per_file)
    files = sorted(source_of(_bench(tmp_path), shape).iterdir())
    assert len(files) == 10
    ids = [json.loads(line)["id"] for path in files for line in path.read_text().splitlines()]
    assert ids == list(range(1_000))


def test_twenty_gigabytes_are_written_only_where_asked_for() -> None:
    assert [name for name, measure in MEASURES.items() if measure.asked and name.startswith(SIZES)] == [
        "sizes-20gb-file"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("shape", _USUAL, ids=lambda shape: shape.name)
def test_both_sides_make_the_same_documents(tmp_path: Path, spark: SparkSession, shape: Shape) -> None:
    for side in sides_of(_bench(tmp_path, spark), shape):
        side.prepare()
        side.run()
        assert side.count() == [side.wanted] * shape.destinations
    for number in range(shape.destinations):
        ours, theirs = (_documents(tmp_path / root / f"out{number}") for root in ("ours", "plain"))
        assert len(ours) == shape.records(1_000)
        assert ours == theirs


@pytest.mark.slow
def test_the_table_has_a_row_for_a_shape(tmp_path: Path, spark: SparkSession) -> None:
    result = sizes(_bench(tmp_path, spark), SHAPES[0])
    about = {"title": "some records", "at": "2026-01-01T00:00:00", "machine": {"cpus": 2}}
    rows = [line for line in table.markdown({f"{SIZES}it": {**about, **result}}).splitlines() if "some records" in line]
    assert len(rows) == 1
    assert rows[0].startswith("| some records | 0 | 1,000 |")
