"""Rows as documents, and rows of one schema as rows of another: nothing changes on the way, or it is refused."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import math
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_dagster.connectors.columnar.documents import documents
from conduit_dagster.connectors.columnar.parquet_writer import row_sizes
from conduit_dagster.connectors.columnar.rows import fitted, kept, readable, storable

UTC = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (pa.int64(), 2**63 - 1, 2**63 - 1),
        (pa.uint64(), 2**64 - 1, 2**64 - 1),
        (pa.string(), "é\0", "é\0"),
        (pa.bool_(), False, False),
        (pa.float32(), 0.5, 0.5),
        (pa.float64(), math.inf, "Infinity"),
        (pa.float64(), -math.inf, "-Infinity"),
        (pa.list_(pa.float64()), [1.5, math.nan], [1.5, "NaN"]),
        (pa.binary(), b"\xff", "/w=="),
        (pa.binary_view(), b"\xff", "/w=="),
        (pa.decimal128(38, 2), decimal.Decimal("12345678901234567890.10"), "12345678901234567890.10"),
        (pa.date32(), dt.date(2024, 2, 29), "2024-02-29"),
        (pa.time64("us"), dt.time(1, 2, 3, 4), "01:02:03.000004"),
        (UTC, dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC), "2024-05-01T12:00:00Z"),
        (pa.timestamp("ms", "Europe/Oslo"), dt.datetime(1969, 12, 31, tzinfo=dt.UTC), "1969-12-31T00:00:00Z"),
        (pa.timestamp("us"), dt.datetime(2024, 5, 1, 12, 0, 0, 7), "2024-05-01T12:00:00.000007"),
        (pa.duration("ms"), dt.timedelta(seconds=1), 1000),
        (pa.dictionary(pa.int8(), pa.string()), "a", "a"),
        (pa.map_(pa.string(), pa.date32()), [("k", dt.date(2024, 1, 1)), ("n", None)], {"k": "2024-01-01", "n": None}),
        (pa.map_(pa.int64(), pa.int64()), [(1, 2)], {"1": 2}),
        (pa.list_(UTC), [dt.datetime(2024, 5, 1, tzinfo=dt.UTC), None], ["2024-05-01T00:00:00Z", None]),
        (pa.list_view(UTC), [dt.datetime(2024, 5, 1, tzinfo=dt.UTC), None], ["2024-05-01T00:00:00Z", None]),
        (pa.large_list_view(UTC), [dt.datetime(2024, 5, 1, tzinfo=dt.UTC), None], ["2024-05-01T00:00:00Z", None]),
        (pa.large_list(pa.binary()), [b"a"], ["YQ=="]),
        (pa.map_(pa.binary(), pa.int8()), [(b"k", 2)], {"aw==": 2}),
        (pa.date32(), 2**31 - 1, "2147483647days"),
        (pa.timestamp("us", "UTC"), 2**60, f"{2**60}us"),
        (
            pa.struct([("t", pa.time64("ns")), ("d", pa.timestamp("s"))]),
            {"t": 1, "d": 2**40},
            {"t": "00:00:00.000000001", "d": f"{2**40}s"},
        ),
        (
            pa.struct([("a", pa.decimal128(5, 1)), ("b", pa.struct([("c", pa.binary())]))]),
            {"a": decimal.Decimal("1.5"), "b": {"c": b"x"}},
            {"a": "1.5", "b": {"c": "eA=="}},
        ),
    ],
)
def test_a_value_of_each_kind(kind: Any, value: Any, shown: Any) -> None:
    batch = pa.record_batch([pa.array([value, None], kind)], ["x"])
    assert documents(batch) == [{"x": shown}, {"x": None}]


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (pa.uuid(), uuid.UUID(int=7).bytes, "00000000-0000-0000-0000-000000000007"),
        (pa.json_(), '{"a": 1}', '{"a": 1}'),
        (pa.bool8(), 1, True),
        (pa.fixed_shape_tensor(pa.float64(), [2]), [0.5, math.nan], [0.5, "NaN"]),
    ],
)
def test_a_value_of_each_kind_of_extension(kind: Any, value: Any, shown: Any) -> None:
    array = pa.ExtensionArray.from_storage(kind, pa.array([value, None], kind.storage_type))
    batch = pa.record_batch([array, pa.StructArray.from_arrays([array], ["y"])], ["x", "n"])
    found = documents(batch)
    assert found == [{"x": shown, "n": {"y": shown}}, {"x": None, "n": {"y": None}}]
    assert type(found[0]["x"]) is type(shown)


def test_no_columns_are_empty_documents() -> None:
    batch = pa.table({"a": [1, 2]}).select([])
    assert documents(batch) == [{}] * batch.num_rows


_LEAVES = st.sampled_from(
    (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.float32(), pa.float64()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.bool_(), pa.date32(), UTC, pa.timestamp("us")),
        *(pa.timestamp("ns", "UTC"), pa.decimal128(9, 2), pa.decimal128(12, 3)),
    )
)
_KINDS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        st.lists(inner, min_size=1, max_size=2).map(lambda kinds: pa.struct(zip("ab", kinds, strict=False))),
    ),
    max_leaves=3,
)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Of that type, and null."""
    times = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))
    if pa.types.is_integer(kind):
        low = 0 if pa.types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
        found: Any = st.integers(low, 2 ** (kind.bit_width - (1 if low else 0)) - 1)
    elif pa.types.is_floating(kind):
        found = st.floats(width=kind.bit_width, allow_nan=False, allow_infinity=False)
    elif pa.types.is_decimal(kind):
        most = decimal.Decimal(10) ** (kind.precision - kind.scale) - 1
        found = st.decimals(-most, most, places=kind.scale)
    elif pa.types.is_timestamp(kind):
        found = times.map(lambda t: t.replace(tzinfo=dt.UTC)) if kind.tz else times
    elif pa.types.is_struct(kind):
        found = st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    elif pa.types.is_list(kind):
        found = st.lists(values(kind.value_type), max_size=3)
    else:
        text = st.text(st.characters(exclude_categories=["Cs"]))
        simple = {pa.bool_(): st.booleans(), pa.date32(): st.dates(), pa.binary(): st.binary()}
        found = simple.get(kind, text)
    return st.none() | found


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    kind = draw(_KINDS)
    return pa.array(draw(st.lists(values(kind), max_size=4)), kind)


@given(arrays(), _KINDS)
def test_what_fits_is_the_same(array: Any, wider: Any) -> None:
    """As the values themselves require; a column for rows as they are accepts all of them."""
    batch = pa.record_batch([array], ["x"])
    taken = fitted(batch, pa.schema([("x", wider)]), strict=True)
    if taken is not None:
        assert taken.column("x").to_pylist() == array.to_pylist()
    own = kept(batch.schema)
    assert fitted(batch, own, strict=True).column("x").to_pylist() == array.to_pylist()


@pytest.mark.parametrize(
    ("kind", "value", "wider"),
    [
        (pa.int64(), 1, pa.int32()),
        (pa.string(), "1", pa.int64()),
        (pa.int64(), 1, pa.string()),
        (pa.float64(), 1.0, pa.int64()),
        (pa.int64(), 2**60 + 1, pa.float64()),
        (UTC, dt.datetime(2024, 1, 1, tzinfo=dt.UTC), pa.timestamp("us")),
        (pa.timestamp("ns", "UTC"), 1, UTC),
        (pa.decimal128(5, 2), decimal.Decimal("1.25"), pa.decimal128(5, 1)),
    ],
)
def test_what_might_change_is_not_taken(kind: Any, value: Any, wider: Any) -> None:
    batch = pa.record_batch([pa.array([value], kind)], ["x"])
    assert fitted(batch, pa.schema([("x", wider)]), strict=True) is None


def test_missing_and_unknown_columns() -> None:
    batch = pa.record_batch({"a": [1], "b": [2]})
    wanted = pa.schema([("a", pa.int64()), ("c", pa.string())])
    assert fitted(batch, wanted, strict=True) is None
    assert fitted(batch, wanted, strict=False).to_pylist() == [{"a": 1, "c": None}]
    nothing = pa.record_batch([pa.nulls(1)], ["a"])
    assert fitted(nothing, pa.schema([("a", pa.int64())]), strict=True).to_pylist() == [{"a": None}]
    required = pa.schema([("a", pa.int64()), pa.field("c", pa.string(), nullable=False)])
    assert fitted(batch, required, strict=False) is None
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    assert fitted(twice, pa.schema([("a", pa.int64())]), strict=True) is None


def test_columns_of_a_new_delta_table() -> None:
    """A table has no type for binary here, and ignores case."""
    assert storable(pa.schema([("a", pa.uint8()), ("t", pa.timestamp("ns", "CET"))])) == pa.schema(
        [("a", pa.int16()), ("t", UTC)]
    )
    for fields in (
        [("a", pa.binary())],
        [("a", pa.int8()), ("A", pa.int8())],
        [("a b", pa.int8())],
    ):
        assert storable(pa.schema(fields)) is None


@pytest.mark.parametrize("columns", [storable, readable])
def test_fields_that_differ_only_in_case_are_no_columns_of_delta_and_spark(columns: Any) -> None:
    """At any depth: Spark refused to read what was staged, with each repeat of the delivery."""
    twice = pa.struct([("id", pa.int8()), ("ID", pa.int8())])
    inside = pa.struct([("s", pa.list_(pa.list_(twice)))])
    for kind in (twice, pa.list_(twice), inside):
        assert columns(pa.schema([("a", kind)])) is None
    beside = pa.struct([("a", pa.struct([("A", pa.int8())]))])
    assert columns(pa.schema([("a", beside), ("b", beside)])) is not None


def test_bytes_are_base64() -> None:
    found = documents(pa.record_batch({"b": pa.array([bytes(range(256))])}))
    assert base64.b64decode(found[0]["b"]) == bytes(range(256))


def test_slices_and_nulls_of_nested_columns() -> None:
    """A slice's lists and maps are its own, and a null is not one with no content."""
    rows = [
        None,
        {"m": [("a", 1)], "l": [1.5]},
        {"m": None, "l": None},
        {"m": [], "l": []},
        {"m": [("b", 2)], "l": [None]},
    ]
    kind = pa.struct([("m", pa.map_(pa.string(), pa.int8())), ("l", pa.list_(pa.float64()))])
    batch = pa.record_batch([pa.array(rows, kind)], ["x"])
    wanted = [
        None,
        {"m": {"a": 1}, "l": [1.5]},
        {"m": None, "l": None},
        {"m": {}, "l": []},
        {"m": {"b": 2}, "l": [None]},
    ]
    for start in range(5):
        assert [found["x"] for found in documents(batch.slice(start))] == wanted[start:]


def test_text_that_is_no_utf8_is_refused_by_what_writes_json() -> None:
    text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    (document,) = documents(pa.record_batch([text], ["x"]))
    assert document == {"x": "\udcff"}


@given(arrays(), st.integers(0, 3))
def test_a_row_has_one_size_whatever_is_beside_it(array: Any, start: int) -> None:
    """The boundaries of row groups, and so a part's digest, must not depend on the blocks."""
    whole = row_sizes(pa.table([array], ["x"]))
    assert list(row_sizes(pa.table([array[start:]], ["x"]))) == list(whole[start:])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.string()), ["t" * 1000] * 5),
        (pa.large_list(pa.list_(pa.string())), [["t" * 1000], [], None, ["t" * 1000] * 4]),
        (pa.list_(pa.binary(), 5), [b"t" * 1000] * 5),
        (pa.map_(pa.string(), pa.string()), [("t" * 1000, None), ("k", "t" * 4000)]),
        (pa.list_(pa.struct([("a", pa.string())])), [{"a": "t" * 5000}, None]),
    ],
)
def test_the_size_of_a_row_is_what_its_items_take(kind: Any, value: Any) -> None:
    """A group of such rows would not fit in memory if each item counted alike."""
    table = pa.table([pa.array([None, value, None, value], kind)], ["x"])
    for low, high in ((0, 4), (1, 3), (3, 4)):
        sizes = row_sizes(table.slice(low, high - low))
        assert [size // 1000 for size in sizes] == [0, 5, 0, 5][low:high]
