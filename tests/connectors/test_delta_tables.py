"""Tables and settings of the delta destination: new, maintained, altered and unsuitable tables; paths and columns."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, TableFeatures, Transaction, write_deltalake
from deltalake import Schema as DeltaSchema
from lab.delta_deliveries import ids, make, numbers, refusals, stage
from lab.delta_rows import column, queried
from lab.waiting import at_once
from pydantic import ValidationError

from conduit_dagster.connectors.delta.destination import DeltaDestinationSettings
from conduit_dagster.connectors.delta.table import DeltaTableLog
from conduit_dagster.recovery.errors import ConduitError, FatalError

PAGE = (Path(__file__).parents[2] / "docs" / "columns.md").read_text(encoding="utf-8")


def test_tasks_that_race_for_a_new_table_make_one(tmp_path: Path) -> None:
    """All use the columns of the first."""
    for attempt in range(10):
        table = DeltaTableLog(str(tmp_path / f"t{attempt}"))

        def create(number: int, table: DeltaTableLog = table) -> str:
            return table.create(pa.schema([(f"c{number}", pa.int64())])).schema().to_json()

        assert len(set(at_once(create, 4))) == 1
        assert DeltaTable(table.uri).version() == 0


def test_what_was_compacted_vacuumed_and_checkpointed_is_still_held(tmp_path: Path) -> None:
    """Also if the log entry itself is gone."""
    destination = make(tmp_path)
    delivery, other = stage(destination, 1, [numbers(1), numbers(2)]), stage(destination, 2, [numbers(3)])
    destination.publish(delivery)
    table = DeltaTable(tmp_path / "table")
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    DeltaTable(tmp_path / "table").create_checkpoint()
    log = sorted((tmp_path / "table" / "_delta_log").glob("*.json"))
    for entry in log[:-1]:
        entry.unlink()
    assert make(tmp_path).holds(delivery)
    make(tmp_path).publish(delivery)
    assert column(tmp_path / "table", "i") == [1, 2]
    destination.publish(other)  # vacuum left the staging folder alone
    assert column(tmp_path / "table", "i") == [1, 2, 3]


def test_checkpoints_come_by_themselves(tmp_path: Path) -> None:
    destination = make(tmp_path)
    table = DeltaTableLog(str(tmp_path / "table")).create(pa.schema([("i", pa.int64())]))
    for version in range(98):
        properties = CommitProperties(app_transactions=[Transaction("x", version)])
        table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
        table = DeltaTable(tmp_path / "table")
    destination.publish(stage(destination, 1, [numbers(1)]))
    assert (tmp_path / "table" / "_delta_log" / "_last_checkpoint").is_file()
    assert make(tmp_path).holds(stage(destination, 1, [numbers(1)], "again"))
    destination.publish(stage(destination, 2, [numbers(2)]))
    assert ids(tmp_path) == [1, 2]


@pytest.mark.parametrize("file", ["old.parquet", "day=1/hour=2/old.parquet"])
def test_files_of_others_are_not_taken_over_by_a_new_table(tmp_path: Path, file: str) -> None:
    """Its readers would leave them out, and a vacuum would remove them."""
    old = tmp_path / "table" / file
    old.parent.mkdir(parents=True)
    old.write_bytes(b"rows")
    for ask in (make(tmp_path).check, lambda: stage(make(tmp_path), 1, [numbers(1)])):
        with pytest.raises(FatalError, match=file) as raised:
            ask()
        assert raised.value.code == "delta.files_without_log"
    assert not (tmp_path / "table" / "_delta_log").exists()
    old.rename(old.with_name("_old.parquet"))
    make(tmp_path).check()
    write_deltalake(tmp_path / "table", pa.table({"i": [0]}))
    make(tmp_path).publish(stage(make(tmp_path), 1, [numbers(1)]))
    assert column(tmp_path / "table", "i") == [0, 1]


def test_a_preview_of_a_table_with_deletion_vectors(tmp_path: Path) -> None:
    """Spark's tables have them by default in some places. How many rows there are, its log does not tell."""
    destination = make(tmp_path)
    assert destination.preview(2) == []
    write_deltalake(tmp_path / "table", pa.table({"i": [0]}), configuration={"delta.enableDeletionVectors": "true"})
    destination.publish(stage(destination, 1, [numbers(1, 2)]))
    assert {row["i"] for row in destination.preview(5)} == {0, 1, 2}
    assert len(destination.preview(2)) == 2
    assert destination.row_count() is None


def test_columns_that_a_table_lacks_are_fatal_before_anything_is_read(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "table", pa.table({"i": ["text"]}))
    with pytest.raises(FatalError) as raised:
        make(tmp_path, columns="i:long").check()
    assert raised.value.code == "delta.columns_differ"
    assert "i:int64" in raised.value.message
    make(tmp_path).check()
    assert set(refusals(make(tmp_path), {"i": 1}, {"i": "x"})) == {0}


def test_a_column_is_added_as_the_page_says(tmp_path: Path) -> None:
    [typed] = re.findall(r'python -c "(.*add_columns.*)"', PAGE)
    make(tmp_path).publish(stage(make(tmp_path), 1, [numbers(1)]))
    assert refusals(make(tmp_path), {"i": 2, "channel": "web"}).keys() == {0}
    exec(typed.replace("./lake/orders", str(tmp_path / "table")))
    destination = make(tmp_path, columns="i:long, channel:string")
    destination.check()
    destination.publish(stage(destination, 2, [[{"i": 2, "channel": "web"}]]))
    assert sorted(row["channel"] or "" for row in queried(tmp_path / "table")) == ["", "web"]


@pytest.mark.parametrize("why", ["partitioned", "constraints", "features", "required"])
def test_tables_that_it_cannot_append_to_are_named(tmp_path: Path, why: str) -> None:
    path = tmp_path / "table"
    kinds = pa.schema([("i", pa.int64()), ("n", pa.struct([pa.field("x", pa.int64(), nullable=why != "required")]))])
    schema = DeltaSchema.from_arrow(kinds)
    DeltaTable.create(path, schema, partition_by=["i"] if why == "partitioned" else None)
    if why == "constraints":
        DeltaTable(path).alter.add_constraint({"positive": "i > 0"})
    if why == "features":
        DeltaTable(path).alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)
    with pytest.raises(FatalError, match=why) as raised:
        make(tmp_path).check()
    assert raised.value.code == "delta.unsupported"


def test_a_table_altered_under_a_prepared_step(tmp_path: Path) -> None:
    """A new column is fine; one of another type is refused by name, and nothing is written."""
    destination = make(tmp_path)
    first, second = stage(destination, 1, [numbers(1)]), stage(destination, 2, [numbers(2)])
    write_deltalake(tmp_path / "table", pa.table({"i": [0], "new": ["x"]}), mode="append", schema_mode="merge")
    destination.publish(first)
    assert column(tmp_path / "table", "i") == [0, 1]
    write_deltalake(tmp_path / "table", pa.table({"i": ["text"]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(FatalError, match="the columns i of") as raised:
        destination.publish(second)
    assert raised.value.code == "delta.altered"
    assert not destination.holds(second)


def test_a_field_that_was_added_to_objects_under_a_prepared_step(tmp_path: Path) -> None:
    """It is null in the staged rows, as in those that were there: no one can take such a field out again."""
    destination = make(tmp_path)
    delivery = stage(destination, 1, [[{"i": 1, "o": {"a": 1}, "many": [{"a": 1}]}]])
    added = {"i": [0], "o": [{"a": 0, "b": 5}], "many": [[{"a": 0, "b": {"c": 5}}]]}
    write_deltalake(tmp_path / "table", pa.table(added), mode="append", schema_mode="merge")
    destination.publish(delivery)
    found = [row for row in queried(tmp_path / "table") if row["i"]]
    assert found == [{"i": 1, "o": {"a": 1, "b": None}, "many": [{"a": 1, "b": None}]}]
    lost = stage(destination, 2, [[{"i": 2, "o": {"a": 2, "b": 2}}]])
    fewer = pa.table({"i": [0], "o": [{"b": 0}]})
    write_deltalake(tmp_path / "table", fewer, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(FatalError, match="the columns o") as raised:
        destination.publish(lost)
    assert raised.value.code == "delta.altered"


def test_a_column_that_became_required_under_a_prepared_step(tmp_path: Path) -> None:
    """With the nulls that were staged for it, readers refused the whole table. The other way round is fine."""
    write_deltalake(tmp_path / "table", pa.table({"i": pa.array([0], pa.int64())}))
    destination = make(tmp_path)
    null, later = stage(destination, 1, [[{"i": None}]]), stage(destination, 3, [numbers(3)])

    def replace(nullable: bool) -> None:
        schema = pa.schema([pa.field("i", pa.int64(), nullable=nullable)])
        write_deltalake(tmp_path / "table", pa.table({"i": [0]}, schema), mode="overwrite", schema_mode="overwrite")

    replace(nullable=False)
    with pytest.raises(FatalError, match="the columns i of") as raised:
        destination.publish(null)
    assert raised.value.code == "delta.altered"
    required = stage(destination, 2, [numbers(2)])
    replace(nullable=True)
    for delivery in (required, later):
        destination.publish(delivery)
    assert column(tmp_path / "table", "i") == [0, 2, 3]


@pytest.mark.parametrize("path", ["a%20b", "a\\b", "a\nb"])
def test_a_path_that_the_library_takes_for_another_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(FatalError) as raised:
        make(tmp_path, path=path)
    assert raised.value.code == "delta.path"


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b", "a\tb", "a ", "a//b", "a/../b", "./a"])
def test_a_url_that_the_library_takes_for_another_is_refused(name: str) -> None:
    """The files would be in the folder of that name, and the log, with the deliveries, in another."""
    with pytest.raises(FatalError) as raised:
        DeltaTableLog(f"s3://lake/tables/{name}")
    assert raised.value.code == "delta.path"


@pytest.mark.parametrize("name", ["", "a", "a b/", "ü", "50%", "a+b", "a&b=c", "[x]", "a;b", "a@b", "a:b", "q'\"x"])
def test_urls_of_any_other_name(name: str) -> None:
    assert DeltaTableLog(f"s3://lake/{name}").uri == f"s3://lake/{name}"


@pytest.mark.parametrize("name", ["a b", "ü", "50%", "a#b?c"])
def test_paths_of_any_name(tmp_path: Path, name: str) -> None:
    destination = make(tmp_path, path=name)
    destination.publish(stage(destination, 1, [numbers(1)]))
    assert queried(tmp_path / name) == numbers(1)
    assert make(tmp_path, path=f"file://{tmp_path}/{name}").address == destination.address


def test_a_path_that_can_be_no_folder_is_said_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in ("file", "file/table"):
        with pytest.raises(ConduitError) as raised:
            make(tmp_path, path=path).check()
        assert raised.value.code == "file.not_folder"


def test_secrets_of_a_url_are_not_shown() -> None:
    assert DeltaTableLog("s3://user:secret@bucket/a/table").address == "s3://bucket/a/table"
    with pytest.raises(FatalError) as raised:
        DeltaTableLog("s3://user:secret@bucket/a/table?token=secret")
    assert "secret" not in str(raised.value.fields())


@pytest.mark.parametrize(
    ("columns", "says"),
    [("i", "name:type"), ("i:int", "unknown type int"), ("a:long,A:long", "twice"), ("a b:long", "can't be called")],
)
def test_columns_that_cannot_be(columns: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        DeltaDestinationSettings.model_validate({"path": "t", "columns": columns})
