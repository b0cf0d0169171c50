"""Documents in a Delta table: which values arrive unchanged, and which are refused by name."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from lab.delta_deliveries import make, numbers, records, refusals, rows, stage
from lab.delta_rows import queried

from conduit_dagster.record import Record
from conduit_dagster.sdk import WriterTask


def test_values_arrive_as_they_are(tmp_path: Path) -> None:
    """Unicode, null, missing, nested, big and small numbers."""
    documents = [
        {"i": 2**63 - 1, "s": "ü\0😀\n", "f": 1, "b": True, "n": {"x": [1, None], "y": {"z": "a"}}, "l": [{"k": 1}]},
        {"i": -(2**63), "s": "", "f": 0.1, "b": None, "n": {"x": []}, "l": [], "null": None},
        {"i": None, "s": None, "n": None},
        {"i": 0},
    ]
    destination = make(tmp_path)
    destination.publish(stage(destination, 1, [documents]))
    assert rows(tmp_path) == [
        {**documents[0], "f": 1.0, "null": None},
        {**documents[1], "n": {"x": [], "y": None}},
        {"i": None, "s": None, "f": None, "b": None, "n": None, "l": None, "null": None},
        {"i": 0, "s": None, "f": None, "b": None, "n": None, "l": None, "null": None},
    ]


def test_an_inferred_field_that_is_only_null_is_a_string(tmp_path: Path) -> None:
    destination = make(tmp_path)
    destination.publish(stage(destination, 1, [[{"a": None, "b": []}]]))
    destination.publish(stage(destination, 2, [[{"a": "x", "b": ["y"]}]]))
    assert rows(tmp_path) == [{"a": None, "b": []}, {"a": "x", "b": ["y"]}]


def test_named_columns_of_every_type(tmp_path: Path) -> None:
    columns = "l:long, i:integer, h:short, y:byte, d:double, f:float, s:string, b:boolean, day:date, t:timestamp, "
    destination = make(tmp_path, columns=columns + "n:timestamp_ntz, m:decimal(10,2)")
    document = {"l": 1, "i": 2, "h": 3, "y": 4, "d": 5.5, "f": 0.5, "s": "x", "b": False, "day": "2024-02-29"}
    document |= {"t": "2024-01-02T03:04:05.000006+01:00", "n": "2024-01-02T03:04:05", "m": "12.34"}
    destination.publish(stage(destination, 1, [[document, {"day": None}]]))
    row = rows(tmp_path)[0]
    assert row == document | {
        "day": datetime.date(2024, 2, 29),
        "t": datetime.datetime(2024, 1, 2, 2, 4, 5, 6, datetime.UTC),
        "n": datetime.datetime(2024, 1, 2, 3, 4, 5),
        "m": Decimal("12.34"),
    }
    assert DeltaTable(tmp_path / "table").count() == 2


def test_a_date_in_a_column_with_a_dot_in_its_name(tmp_path: Path) -> None:
    """It was taken for a date inside of an object, which JSON can't fill."""
    destination = make(tmp_path, columns="born.on:date")
    destination.publish(stage(destination, 1, [[{"born.on": "2024-05-01"}]]))
    assert rows(tmp_path) == [{"born.on": datetime.date(2024, 5, 1)}]


def test_what_does_not_fit_is_refused_by_name_and_the_rest_is_in(tmp_path: Path) -> None:
    destination = make(tmp_path, columns="i:long, s:string, d:double, day:date, m:decimal(4,1)")
    given = [
        {"i": 1, "s": "x"},
        {"i": 2**64},
        {"i": 1.0},
        {"i": "1"},
        {"i": True},
        {"s": 1},
        {"s": {"a": 1}},
        {"d": "1"},
        {"day": "2024-02-30"},
        {"m": "1.23"},
        {"i": 2, "extra": 1},
        {"i": 2, "extra": None},
        {"i": 2, "a b": 1},
        {"i": 3, "d": 2},
        {"s": "\ud800"},
        {},
    ]
    found = refusals(destination, *given)
    assert {place: code for place, (code, _) in found.items()} == {
        **dict.fromkeys(range(1, 10), "delta.does_not_fit"),
        10: "delta.unknown_field",
        11: "delta.unknown_field",
        12: "delta.unknown_field",
        14: "format.invalid",
    }
    assert "field i is 18446744073709551616" in found[1][1]
    assert all(name in found[place][1] for place, name in ((5, "s"), (7, "d"), (8, "day"), (9, "m"), (10, "extra")))


def test_a_number_beyond_the_range_of_its_column_does_not_fit(tmp_path: Path) -> None:
    """It would be an infinity."""
    destination = make(tmp_path, columns="d:double,f:float")
    found = refusals(destination, {"d": 10**308, "f": 3e38}, {"d": 10**309}, {"f": 1e39}, {"f": -1e39})
    assert {place: code for place, (code, _) in found.items()} == dict.fromkeys((1, 2, 3), "delta.does_not_fit")
    assert "the field f is 1e+39" in found[2][1]

    nested = make(tmp_path, path="nested")
    nested.publish(stage(nested, 1, [[{"n": [{"d": 0.5}]}]]))
    assert refusals(nested, {"n": [{"d": 1}, {"d": 10**309}]})[0][1].startswith("the field n[1].d is 1000")


@pytest.mark.parametrize("nested", [False, True])
def test_a_whole_number_loses_no_digits_in_a_column_of_floats(tmp_path: Path, nested: bool) -> None:
    """It may be an id. Numbers as JavaScript and Go write floats, with the shortest digits, are kept."""
    destination = make(tmp_path, columns="" if nested else "d:double,f:float")
    first = {"d": 0.5, "f": 0.5}
    destination.publish(stage(destination, 1, [[{"n": [first]} if nested else first]]))
    kept = [2**53, -(2**60), 1152921504606847000, 10**23, float(2**53 + 1), 1.5e300]
    lost = [2**53 + 1, -(2**53) - 1, 10**18 + 1]
    found = refusals(destination, *({"n": [{"d": d}]} if nested else {"d": d} for d in [*kept, *lost]))
    assert {place: code for place, (code, _) in found.items()} == dict.fromkeys((6, 7, 8), "delta.does_not_fit")
    assert f"the field {'n[0].' if nested else ''}d is 9007199254740993" in found[6][1]


def test_a_whole_number_loses_no_digits_in_a_column_of_short_floats(tmp_path: Path) -> None:
    found = refusals(make(tmp_path, columns="f:float"), *({"f": f} for f in (2**24, 123456790, 3 * 10**38, 16777217)))
    assert list(found) == [3]


def test_a_refusal_does_not_depend_on_the_neighbours(tmp_path: Path) -> None:
    """One by one and in blocks of any length: the same records are refused."""
    documents: list[Any] = [{"i": n} if n % 7 else {"i": str(n)} for n in range(50)]
    bad = {n for n in range(50) if n % 7 == 0}
    destination = make(tmp_path, columns="i:long")
    for size in (1, 3, 50):
        writer = destination.writer(WriterTask(destination.staging("") + f"/{size}", 0, "r"))
        refused = {
            start + refusal.place
            for start in range(0, 50, size)
            for refusal in writer.write(records(*documents[start : start + size]))
        }
        part = writer.finish()
        assert refused == bad
        assert part is not None
        assert part.records == 50 - len(bad)


def test_nested_misfits_are_named_by_their_path(tmp_path: Path) -> None:
    destination = make(tmp_path)
    destination.publish(stage(destination, 1, [[{"n": {"x": 1, "l": [{"k": 1}]}}]]))
    found = refusals(
        destination, {"n": {"x": "1"}}, {"n": {"l": [{"k": 1}, {"k": 0.5}]}}, {"n": {"z": 1}}, {"n": 5}, {"n": {}}
    )
    assert {place: message.split(" is ")[0] for place, (_, message) in found.items()} == {
        0: "the field n.x",
        1: "the field n.l[1].k",
        2: "no column for the field n.z",
        3: "the field n",
    }


def test_a_field_whose_name_no_column_can_have_is_told_as_that(tmp_path: Path) -> None:
    destination = make(tmp_path, columns="i:long")
    found = refusals(destination, {"i": 1, "j": 1}, *({"i": 1, name: 1} for name in ("", "\t", "a,b")))
    told = [message for _, (_, message) in sorted(found.items())]
    assert told[0] == "no column for the field j"
    for message, name in zip(told[1:], ("''", r"'\t'", "'a,b'"), strict=True):
        assert message.startswith(f"no column for the field {name}: a column's name is not empty, and has no blank")


def test_only_created_and_snapshot_documents_are_appended(tmp_path: Path) -> None:
    given = [Record(0, {}, {"i": 1}, operation=o) for o in ("create", "update", "delete", "snapshot")]
    found = refusals(make(tmp_path), *given, Record(0, {}, b'{"i": 1}'), Record(0, {}, None))
    assert {place: code for place, (code, _) in found.items()} == {
        1: "delta.append_only",
        2: "delta.append_only",
        4: "delta.no_document",
        5: "delta.no_document",
    }
    assert "json.decode" in found[4][1]


def test_unknown_fields_can_be_ignored(tmp_path: Path) -> None:
    destination = make(tmp_path, columns="i:long", unknown_fields="ignore")
    assert set(refusals(destination, {"i": 1, "x": 1}, {"i": "1", "x": 1})) == {1}
    destination.publish(stage(destination, 1, [[{"i": 1, "x": {"y": 1}}, {"y": 2}]]))
    assert rows(tmp_path) == [{"i": 1}, {"i": None}]


def test_required_columns_of_a_table(tmp_path: Path) -> None:
    item = pa.struct([pa.field("x", pa.int64(), nullable=False), ("y", pa.int64())])
    fields = [pa.field("i", pa.int64(), nullable=False), pa.field("n", pa.list_(pa.field("element", item, False)))]
    DeltaTable.create(tmp_path / "table", DeltaSchema.from_arrow(pa.schema(fields)))
    destination = make(tmp_path)
    found = refusals(destination, {"i": 1}, {"i": None}, {}, {"i": 1, "n": [{}]}, {"i": 1, "n": [None]})
    assert {place: code for place, (code, _) in found.items()} == dict.fromkeys((1, 2, 3, 4), "delta.required")
    assert "n[0].x" in found[3][1]
    destination.publish(stage(destination, 1, [[{"i": 1, "n": [{"x": 2}]}, {"i": 2}]]))
    assert rows(tmp_path) == [{"i": 1, "n": [{"x": 2, "y": None}]}, {"i": 2, "n": None}]


def test_columns_that_json_cannot_fill_stay_null(tmp_path: Path) -> None:
    kinds = pa.schema([("i", pa.int64()), ("raw", pa.binary()), ("m", pa.map_(pa.string(), pa.int64()))])
    DeltaTable.create(tmp_path / "table", DeltaSchema.from_arrow(kinds))
    destination = make(tmp_path)
    assert set(refusals(destination, {"i": 1, "raw": "x"}, {"i": 1})) == {0}
    destination.publish(stage(destination, 1, [numbers(1)]))
    assert queried(tmp_path / "table") == [{"i": 1, "raw": None, "m": None}]


def test_a_new_table_of_documents_without_fields_is_not_made(tmp_path: Path) -> None:
    found = refusals(make(tmp_path), {}, {"empty": {}})
    assert {code for code, _ in found.values()} == {"delta.no_columns"}
    assert not DeltaTable.is_deltatable(str(tmp_path / "table"))
