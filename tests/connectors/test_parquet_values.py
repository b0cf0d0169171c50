"""The parquet source: values and columns of files as others write them, and the blocks in which they come."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lab.parquet_inbox import ALL
from lab.parquet_reading import make, read

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import ReadOptions, Rows


def test_times_as_spark_writes_them(tmp_path: Path) -> None:
    """INT96, of years that nanoseconds can't represent: an instant, as it is for Spark."""
    (tmp_path / "in").mkdir()
    far = pa.table({"t": pa.array([253_402_214_400_000_000], pa.timestamp("us"))})
    pq.write_table(far, tmp_path / "in" / "a.parquet", use_deprecated_int96_timestamps=True)
    source = make(tmp_path)
    end = source.latest(source.initial(), ALL)
    assert read(source, source.initial(), end) == [{"t": "9999-12-31T00:00:00Z"}]


# earlier versions do not read back a list of fixed size that is missing
_NO_PAIR = None if int(pa.__version__.split(".")[0]) >= 26 else [9, 9]


@pytest.mark.parametrize("stored", [False, True], ids=["parquet", "arrow"])
def test_times_as_spark_writes_them_inside_of_others(tmp_path: Path, stored: bool) -> None:
    """Columns beside them stay what they are, however many columns of the file they are made of."""
    (tmp_path / "in").mkdir()
    time, pair = pa.timestamp("us"), pa.list_(pa.struct([("a", pa.string()), ("t", pa.timestamp("us"))]))
    rows = {
        "s": pa.array([{"a": [{"a": "x", "t": 1}]}, None], pa.struct([("a", pair)])),
        "m": pa.array([None, [(2, 3)]], pa.map_(time, time)),
        "t": pa.array([4, None], time),
        "v": pa.array([5, 6]),
        "f": pa.array([[7, 8], _NO_PAIR], pa.list_(time, 2)),
    }
    path = tmp_path / "in" / "a.parquet"
    pq.write_table(pa.table(rows), path, use_deprecated_int96_timestamps=True, store_schema=stored)
    source = make(tmp_path)
    end = source.latest(source.initial(), ALL)
    first, second = read(source, source.initial(), end)
    assert first == {
        "s": {"a": [{"a": "x", "t": "1970-01-01T00:00:00.000001Z"}]},
        "m": None,
        "t": "1970-01-01T00:00:00.000004Z",
        "v": 5,
        "f": ["1970-01-01T00:00:00.000007Z", "1970-01-01T00:00:00.000008Z"],
    }
    assert second["m"] == {"1970-01-01T00:00:00.000002Z": "1970-01-01T00:00:00.000003Z"}
    assert second["s"] is None and second["t"] is None


# of a column: its logical type STRING in the footer, and as the older converted type; and what ENUM is there
_STRING, _ENUM = b"\x25\x00\x4c\x1c\x00\x00\x00", b"\x25\x08\x4c\x4c\x00\x00\x00"


@pytest.mark.parametrize("rows", [False, True])
def test_an_enumeration_is_text(tmp_path: Path, rows: bool) -> None:
    """As writers of Avro objects store it, alone and inside of others; pyarrow writes none."""
    kind = pa.list_(pa.struct([("state", pa.string())]))
    table = pa.table({"state": ["open", None], "all": pa.array([None, [{"state": "shut"}]], kind), "b": [b"x", b"y"]})
    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(table, path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"state" + _STRING, b"state" + _ENUM))
    assert str(pq.ParquetFile(path).schema).count("(Enum)") == 2
    source = make(tmp_path)
    first, second = read(source, source.initial(), source.latest(source.initial(), ALL), rows=rows)
    assert first == {"state": "open", "all": None, "b": "eA=="}
    assert second == {"state": None, "all": [{"state": "shut"}], "b": "eQ=="}


@pytest.mark.parametrize(
    ("text", "statistics", "least"),
    [("x" * 20_000, True, 100), ("x" * 2_000, True, 1_000), ("x" * 2_000, False, 1_000), ("x" * 20, True, 30_000)],
)
def test_a_block_of_repeated_text_fits_in_memory(tmp_path: Path, text: str, statistics: bool, least: int) -> None:
    """Encoded, all of it is a few kilobytes; decoded at once, it may be gigabytes."""
    rows = 30_000
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a.parquet"
    table = pa.table({"s": repeated, "n": pa.nulls(rows, pa.string())})
    pq.write_table(table, path, store_schema=False, write_statistics=statistics)
    source = make(tmp_path)
    (split,) = source.split(source.initial(), source.latest(source.initial(), ALL), 1)
    blocks = [block.records for block in source.read(split, ReadOptions(rows=True))]
    batches = [block.batch for block in blocks if isinstance(block, Rows)]
    assert sum(batch.num_rows for batch in batches) == rows
    assert max(batch.nbytes for batch in batches) < 16 << 20
    assert max(batch.num_rows for batch in batches) >= least


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), tmp_path / "in" / "a.parquet")
    with pytest.raises(FatalError) as raised:
        make(tmp_path).latest(make(tmp_path).initial(), ALL)
    assert raised.value.code == "parquet.columns_twice"


def test_two_fields_of_one_name_inside_a_column_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    nested = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), twice)
    pq.write_table(pa.table({"n": nested}), tmp_path / "in" / "a.parquet")
    with pytest.raises(FatalError) as raised:
        make(tmp_path).latest(make(tmp_path).initial(), ALL)
    assert raised.value.code == "parquet.columns_twice" and " n.element.a," in raised.value.message


def test_a_wide_row_group_comes_in_small_blocks(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rng = random.Random(1)
    pq.write_table(pa.table({"b": [rng.randbytes(1 << 20) for _ in range(20)]}), tmp_path / "in" / "a.parquet")
    source = make(tmp_path)
    (split,) = source.split(source.initial(), source.latest(source.initial(), ALL), 1)
    assert max(len(block.records) for block in source.read(split, ReadOptions(rows=True))) <= 4
