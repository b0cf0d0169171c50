"""The setting ``collection`` of sources of files: the collection of a file's records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.file_reading import MUCH, Reader, append
from lab.support import DECODE, Crashes, Lab, destination, source
from pydantic import ValidationError
from pyspark.sql import SparkSession

from conduit_dagster.connectors.file.settings import FileSourceSettings
from conduit_dagster.connectors.parquet.source import ParquetSourceSettings
from conduit_dagster.connectors.path_settings import CollectionPattern, is_safe
from conduit_dagster.connectors.spark.settings import SparkSourceSettings
from conduit_dagster.record import COLLECTION
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import ReadOptions


@pytest.mark.parametrize(
    ("text", "file", "collection"),
    [
        ("orders", "anything.jsonl", "orders"),
        ("^([a-z]+)-", "orders-2024.jsonl", "orders"),
        ("^([a-z]+)-", "2024.jsonl", ""),
        ("(?:^|-)v1-(.+)[.]jsonl$", "a-v1-b c.jsonl", "b c"),
        ("^(a)?", "b", ""),
        ("", "orders.jsonl", ""),
    ],
)
def test_a_name_or_the_group_of_an_expression(text: str, file: str, collection: str) -> None:
    assert CollectionPattern(text).of(file) == collection


@given(st.text(max_size=12))
def test_no_file_name_gives_a_collection_that_leaves_its_folder(file: str) -> None:
    """The group of any expression is a plain name, or an error."""
    try:
        found = CollectionPattern("(?s)(.*)").of(file)
    except FatalError as error:
        assert error.code == "source.collection_unsafe"
        assert not is_safe(file)
    else:
        assert found == file
        assert Path("/base", found).resolve().parent in (Path("/base"), Path("/"))
        assert found in ("", Path(found).name)


@pytest.mark.parametrize("bad", ["..", ".", "a/b", "a\\b", "a\nb", "a\0b", "(", "(a)(b)", "x(?:y)", "n" * 256])
@pytest.mark.parametrize("model", [FileSourceSettings, ParquetSourceSettings, SparkSourceSettings])
def test_an_unsafe_name_and_an_expression_without_one_group_are_refused(model: Any, bad: str) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate({"path": "in", "collection": bad})
    assert [error["loc"] for error in caught.value.errors()] == [("collection",)]


def test_rows_of_spark_have_a_name_only() -> None:
    """Landed files have no names known to the user; an option of the format with that name has a prefix."""
    with pytest.raises(ValidationError):
        SparkSourceSettings.model_validate({"collection": "^(a)"})
    settings = SparkSourceSettings.model_validate({"collection": "orders", "option.collection": "theirs"})
    assert (settings.collection, settings.options) == ("orders", {"collection": "theirs"})


def test_a_rotated_file_keeps_its_collection(tmp_path: Path, log: Path) -> None:
    append(log, "a\n")
    reader = Reader(tmp_path, "./app.log", collection="^([a-z]+)[.]log$")
    end = reader.source.latest(reader.position, MUCH)
    (split,) = reader.source.split(reader.position, end, 1)
    log.rename(log.with_name("app.log.1"))
    (block,) = reader.source.read(reader.source.relocate(split), ReadOptions())
    assert [record.metadata[COLLECTION] for record in block.records] == ["app"]


@pytest.mark.slow
def test_the_log_has_it_as_namespace_and_so_have_the_offsets(tmp_path: Path, spark: SparkSession) -> None:
    lab = Lab(tmp_path, spark)
    for name, first in (("orders-1", 0), ("emails-1", 10), ("orders-2", 20)):
        lab.write(f"in/{name}.jsonl", [{"i": i} for i in range(first, first + 3)])
    reading = source("./in")
    reading["settings"]["collection"] = "^([a-z]+)-"
    lab.pipeline(connectors=[reading, destination()], processors=[DECODE], delivery={"log": "records"})
    assert lab.run().error is None
    rows = spark.read.parquet(str(tmp_path / ".conduit" / "log" / "p" / "in")).orderBy("offset").collect()
    assert [row.namespace for row in rows] == [*["emails"] * 3, *["orders"] * 6]
    assert [row.mode for row in rows] == [*["copy"] * 2, "complete", *["copy"] * 5, "complete"]
    with lab.store() as database:
        from conduit_dagster.state.overview import offset_rows

        found = {row["namespace"]: row["offset"] for row in offset_rows(database, "p") if row["consumer"] == "out"}
    assert found == {"*": 8, "emails": 2, "orders": 8}


@pytest.mark.slow
def test_a_prepared_step_keeps_the_collection_of_its_decision(
    tmp_path: Path, spark: SparkSession, crashes: Crashes
) -> None:
    """It is part of the record: lost staging is not rebuilt with another one; with staging nothing is read."""
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", [{"i": 1}])
    whole = {"id": "out", "type": "destination", "plugin": "builtin:file", "settings": {"path": "./out.jsonl"}}

    def build(collection: str) -> None:
        reading = source()
        reading["settings"]["collection"] = collection
        lab.pipeline(connectors=[reading, whole], delivery={"strategy": "exactly-once"})

    build("old")
    crashes(lab, "after-prepare")
    staging = tmp_path / ".conduit" / "staging"
    away = staging.rename(tmp_path / "away")
    build("new")
    refused = lab.run().error
    assert refused is not None
    assert refused.code in ("delivery.rebuild_differs", "delivery.source_changed")
    for left in staging.iterdir():
        left.rename(tmp_path / f"left-{left.name}")
    staging.rmdir()
    away.rename(staging)
    assert lab.run().error is None
    lab.write("in.jsonl", [{"i": 2}], mode="a")
    assert lab.run().error is None
    assert [row["metadata"]["opencdc.collection"] for row in lab.documents("out.jsonl")] == ["old", "new"]
