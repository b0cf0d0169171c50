"""The parquet destination: files of one set of columns, rows as they are where they fit, else documents."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lab.waiting import at_once

from conduit_dagster.connectors.columnar import parquet_writer as columns_writer
from conduit_dagster.connectors.columnar.documents import documents
from conduit_dagster.connectors.parquet.destination import ParquetDestination, ParquetDestinationSettings
from conduit_dagster.expressions import Clock
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import ConnectorContext, Delivery, Rows, WriterTask


def make(root: Path, **more: str) -> ParquetDestination:
    """A destination that writes to ``ROOT/out``."""
    context = ConnectorContext("p", "out", str(root), Clock(7), "exactly-once")
    return ParquetDestination(ParquetDestinationSettings.model_validate({"path": "out", **more}), context)


def records(*given: Any) -> list[Record]:
    return [Record(i, {}, document) for i, document in enumerate(given)]


def columns(**given: Any) -> list[Record]:
    """The same as columns."""
    batch = pa.record_batch(given)
    return cast("list[Record]", Rows(batch, Record(0, {}), lambda: records(*documents(batch))))


def stage(destination: ParquetDestination, *blocks: list[Record], step: int = 1) -> tuple[Delivery, list[Any]]:
    """A delivery of one part, and the nacks."""
    staging = destination.staging("") + f"/{step}/out"
    writer = destination.writer(WriterTask(staging, 0, "t"))
    refused = [refusal for block in blocks for refusal in writer.write(block)]
    part = writer.finish()
    target = destination.target(None)
    return Delivery(f"{step:02x}" * 32, step, "out", staging, (part,) if part else (), target), refused


def rows(root: Path) -> list[Any]:
    files = sorted((root / "out").glob("step=*/*.parquet"))
    return [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]


def test_rows_and_documents_are_the_same_rows(tmp_path: Path) -> None:
    destination = make(tmp_path)
    destination.check()
    delivery, refused = stage(destination, columns(i=[1, 2], s=["a", None]), records({"i": 3, "s": "c"}, {"i": 4}))
    assert not refused and not destination.holds(delivery)
    destination.publish(delivery)
    destination.publish(delivery)
    assert destination.holds(delivery)
    assert rows(tmp_path) == [{"i": 1, "s": "a"}, {"i": 2, "s": None}, {"i": 3, "s": "c"}, {"i": 4, "s": None}]
    assert pq.read_table(tmp_path / "out", partitioning=None).num_rows == 4


def test_columns_of_any_kind_stay_what_they_are(tmp_path: Path) -> None:
    """Values that documents can't express; a document then can't fill them."""
    given = {
        "b": pa.array([b"\xff"]),
        "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "f": pa.array([float("inf")]),
    }
    destination = make(tmp_path)
    delivery, refused = stage(destination, columns(**given), records({"b": "x"}))
    destination.publish(delivery)
    assert rows(tmp_path) == [{"b": b"\xff", "m": [("k", 1)], "f": float("inf")}]
    assert [(one.place, one.nack.code) for one in refused] == [(0, "parquet.unfillable")]
    assert "b, m" in refused[0].nack.message


def test_rows_that_do_not_fit_are_nacked_one_by_one(tmp_path: Path) -> None:
    destination = make(tmp_path, columns="i:integer")
    delivery, refused = stage(destination, columns(i=[1, 2**40, 3]), columns(i=[4], j=[5]), columns(i=pa.array([6.5])))
    destination.publish(delivery)
    assert rows(tmp_path) == [{"i": 1}, {"i": 3}]
    codes = [(one.place, one.nack.code) for one in refused]
    assert codes == [(1, "parquet.does_not_fit"), (0, "parquet.unknown_field"), (0, "parquet.does_not_fit")]


def test_one_row_that_does_not_fit_leaves_the_others(tmp_path: Path) -> None:
    """Also if documents could not hold the others: infinity, bytes."""
    exact = [1_000, 2_000, 3_001, 4_000]
    given = columns(
        x=pa.array([float("inf")] * 4), b=pa.array([b"\xff"] * 4), t=pa.array(exact, pa.timestamp("ns", "UTC"))
    )
    delivery, refused = stage(make(tmp_path), given)
    make(tmp_path).publish(delivery)
    assert [(one.place, one.nack.code) for one in refused] == [(2, "parquet.does_not_fit")]
    assert "column t is '1970-01-01T00:00:00.000003001Z' of type timestamp[ns" in refused[0].nack.message
    assert [row["t"].microsecond for row in rows(tmp_path)] == [1, 2, 4]


def test_the_column_at_fault_is_named_beside_ones_that_documents_cannot_fill(tmp_path: Path) -> None:
    """Of blocks none of whose rows fit as well."""
    destination = make(tmp_path)
    binary = pa.array([b"\xff"] * 2)
    _, refused = stage(
        destination, columns(b=binary, i=[1, 2]), columns(b=binary, i=["x", "y"]), columns(b=binary, j=[1, 2])
    )
    assert [(one.place, one.nack.code) for one in refused] == [
        (0, "parquet.does_not_fit"),
        (1, "parquet.does_not_fit"),
        (0, "parquet.unknown_field"),
        (1, "parquet.unknown_field"),
    ]
    assert "column i is 'y' of type string, and the table's column is of type int64" in refused[1].nack.message
    assert refused[2].nack.message.endswith("column j")


def test_all_writers_agree_on_the_columns(tmp_path: Path) -> None:
    """Whoever is first: the others' rows fit, or are refused; no file has other columns."""
    given = [records({"i": 1}), records({"i": "x"}), columns(i=pa.array([True]))]
    barrier, parts = threading.Barrier(3), dict[int, Any]()

    def one(number: int) -> None:
        writer = make(tmp_path).writer(WriterTask(str(tmp_path / "staging"), number, "t"))
        barrier.wait(120)
        refused = writer.write(given[number])
        parts[number] = (refused, writer.finish())

    at_once(one, 3)
    written = [part for refused, part in parts.values() if not refused]
    assert len(written) == 1
    assert all(len(refused) == 1 and part is None for refused, part in parts.values() if refused)


def test_the_setting_must_name_the_folders_columns(tmp_path: Path) -> None:
    destination = make(tmp_path)
    destination.publish(stage(destination, records({"i": 1}))[0])
    make(tmp_path, columns="i:long").check()
    with pytest.raises(FatalError) as raised:
        make(tmp_path, columns="i:string").check()
    assert raised.value.code == "parquet.columns_differ"
    (tmp_path / "out" / "_conduit_columns").write_bytes(b"?")
    with pytest.raises(FatalError) as raised:
        make(tmp_path).check()
    assert raised.value.code == "parquet.columns_damaged"


def test_what_is_no_document_is_refused(tmp_path: Path) -> None:
    given = [
        Record(0, {}, {"i": 1}),
        Record(1, {}, b"raw"),
        Record(2, {}, None),
        Record(3, {}, {"i": 2}, operation="delete"),
    ]
    _, refused = stage(make(tmp_path), given)
    assert [(one.place, one.nack.code) for one in refused] == [
        (1, "parquet.no_document"),
        (2, "parquet.no_document"),
        (3, "parquet.append_only"),
    ]
    _, refused = stage(make(tmp_path), records({}), step=2)
    assert not refused, "the folder has columns by now"


def test_the_same_rows_in_other_blocks_are_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost part is staged again, and its digest compared; several row groups."""
    monkeypatch.setattr(columns_writer, "ROW_GROUP_BYTES", 100_000)
    lists = [[f"{k}" * (n % 5) for k in range(n % 3)] if n % 7 else None for n in range(60_000)]
    whole = pa.table({"i": list(range(60_000)), "s": [f"{n:x}" for n in range(60_000)], "l": lists})
    parts = []
    for size in (700, 9_999, 60_000):
        writer = make(tmp_path).writer(WriterTask(str(tmp_path / "staging" / str(size)), 0, "r"))
        for batch in whole.to_batches(size):
            assert not writer.write(columns(**dict(zip(batch.schema.names, batch.columns, strict=True))))
        parts.append(writer.finish())
    assert len({(part.records, part.bytes, part.sha256) for part in parts if part}) == 1
    file = pq.ParquetFile(tmp_path / "staging" / "700" / "00000-r.parquet")
    assert file.metadata.num_row_groups > 5
    assert file.read() == whole
