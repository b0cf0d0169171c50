"""Generated functions for a table's columns, and columns decoded whole: equal to decoding value by value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from conduit_dagster.connectors.postgres.changes import ReadAs
from conduit_dagster.connectors.postgres.copied_rows import RowRecords, TablePart
from conduit_dagster.connectors.postgres.row_values import Decode, column_values, decoder_of, row_builder, row_reader
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.source_tables import KeyColumn

NOT_SENT = object()
Cell = bytes | None | object
Columns = list[tuple[str, int, Cell]]
"""Name, type and cell of each column of a row."""
_MOST_COLUMNS = 1_600

_texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
_names = st.one_of(st.sampled_from(["'", '"', "\\", "{0}", "a\nb", "value0", "x'] = 1 #"]), _texts.filter(len))
_times = st.datetimes().map(lambda at: at.isoformat(" "))
_timestamps = st.one_of(_times, st.sampled_from(["infinity", "-infinity", "0044-03-15 12:00:00 BC"]))
_zoned = st.one_of(
    _times.map(lambda at: f"{at}+00"),
    st.sampled_from(["infinity", "-infinity", "0044-03-15 12:00:00+00 BC", "12024-02-29 12:00:00+00"]),
)
VALUES: dict[int, st.SearchStrategy[str]] = {
    20: st.integers(-(2**63), 2**63 - 1).map(str),
    25: _texts,
    701: st.floats().map(lambda one: {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(one), repr(one))),
    16: st.sampled_from("tf"),
    1114: _timestamps,
    1184: _zoned,
}
"""Texts of PostgreSQL by the type's OID."""


def decoder(oid: int) -> Decode:
    return decoder_of(oid, lambda own: None)


def _cells(oid: int) -> st.SearchStrategy[bytes]:
    return VALUES[oid].map(str.encode)


def _column(name: str) -> st.SearchStrategy[tuple[str, int, Cell]]:
    def of(oid: int) -> st.SearchStrategy[tuple[str, int, Cell]]:
        cells = st.one_of(_cells(oid), st.none(), st.just(NOT_SENT))
        return st.tuples(st.just(name), st.just(oid), cells)

    return st.sampled_from(sorted(VALUES)).flatmap(of)


_rows = st.lists(_names, max_size=8, unique=True).flatmap(lambda names: st.tuples(*map(_column, names)).map(list))


def tuple_data(cells: list[Cell]) -> bytes:
    """As PostgreSQL sends a row."""
    made = [
        b"u" if cell is NOT_SENT else b"n" if cell is None else b"t" + len(cell).to_bytes(4, "big") + cell  # type: ignore[arg-type, operator]
        for cell in cells
    ]
    return len(cells).to_bytes(2, "big") + b"".join(made)


def plain(columns: Columns) -> dict[str, Any]:
    """One column after the other."""
    sent = [column for column in columns if column[2] is not NOT_SENT]
    return {name: None if cell is None else decoder(oid)(cell) for name, oid, cell in sent}  # type: ignore[arg-type]


def exactly(value: Any) -> str:
    """A text that distinguishes 0.0, -0.0 and 0, and the order of fields."""
    return repr(value)


@settings(max_examples=400, deadline=None)
@given(columns=_rows, before=st.binary(max_size=9), behind=st.binary(max_size=9))
@example(columns=[("a", 25, b"x" * 70_000), ("b", 25, None), ("c", 25, b"")], before=b"I", behind=b"N")
@example(columns=[(f"c{i}", 20, b"%d" % i) for i in range(_MOST_COLUMNS)], before=b"", behind=b"")
def test_a_generated_reader_reads_as_column_after_column(columns: Columns, before: bytes, behind: bytes) -> None:
    read = row_reader([(name, decoder(oid)) for name, oid, _ in columns])
    row = tuple_data([cell for *_, cell in columns])
    found, end = read(before + row + behind, len(before))
    assert exactly(found) == exactly(plain(columns))
    assert end == len(before) + len(row)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(VALUES)).flatmap(lambda oid: st.tuples(st.just(oid), st.lists(_cells(oid), min_size=1))))
@example((20, [b"-0", b"0"]))
@example((25, [b"", b""]))
@example((1184, [b"2024-02-29 12:00:00+00", b"infinity"]))
def test_a_column_is_decoded_as_its_values_one_by_one(column: tuple[int, list[bytes]]) -> None:
    oid, cells = column
    assert exactly(column_values(cells, decoder(oid))) == exactly([decoder(oid)(cell) for cell in cells])


@settings(max_examples=1_000)
@given(st.floats(allow_nan=False, allow_infinity=False))
@example(-0.0)
@example(5e-324)
@example(1.7976931348623157e308)
def test_a_float_is_the_one_that_the_text_says(value: float) -> None:
    for text in (repr(value), f"{value:.17g}", f"{value:.9g}"):
        assert exactly(decoder(701)(text.encode())) == exactly(float(text))


@settings(max_examples=500)
@given(st.integers(-(2**63), 2**64 - 1))
def test_an_integer_is_the_one_that_the_text_says(value: int) -> None:
    assert exactly(decoder(20)(b"%d" % value)) == exactly(value)


_ESCAPES = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\"}


def copy_line(cells: list[bytes | None]) -> bytes:
    """As COPY writes a row."""
    texts = ["\\N" if cell is None else "".join(_ESCAPES.get(one, one) for one in cell.decode()) for cell in cells]
    return "\t".join(texts).encode() + b"\n"


def _table(names: list[str]) -> st.SearchStrategy[tuple[list[str], list[int], list[list[bytes | None]]]]:
    def of(oids: list[int]) -> st.SearchStrategy[Any]:
        # the first column is the key
        cells = [_cells(oids[0]), *(st.one_of(_cells(oid), st.none()) for oid in oids[1:])]
        row = st.tuples(*cells).map(list)
        return st.tuples(st.just(names), st.just(oids), st.lists(row, min_size=1, max_size=5))

    return st.lists(st.sampled_from(sorted(VALUES)), min_size=len(names), max_size=len(names)).flatmap(of)


_tables = st.lists(_names, min_size=1, max_size=5, unique=True).flatmap(_table)


@settings(max_examples=300, deadline=None)
@given(table=_tables, with_positions=st.booleans())
def test_lines_of_a_copy_are_records_of_their_cells(table: Any, with_positions: bool) -> None:
    names, oids, rows = table
    columns, order = list(zip(names, oids, strict=True)), [KeyColumn(names[0], "text")]
    part = TablePart(TableName("public", "a"), columns, names[:1], order, "snapshot", None, None, "a")
    maker = RowRecords(part, list(map(decoder, oids)), ReadAs({"from": "here"}, with_positions))
    lines = [copy_line(row) for row in rows]
    records = maker.records(lines)
    for record, line, row in zip(records, lines, rows, strict=True):
        after = plain(list(zip(names, oids, row, strict=True)))
        assert exactly((record.after, record.key)) == exactly((after, {names[0]: after[names[0]]}))
        assert (record.operation, record.before) == ("snapshot", None)
        assert record.metadata == {"opencdc.collection": "a", "from": "here"}
        assert maker.order_texts(line) == [row[0].decode()]
        position = f"public.a/{json.dumps([row[0].decode()], ensure_ascii=False)}"
        assert [*maker.positions([line]), record.position] == [position, position if with_positions else ""]
        assert maker.whole([line]) == [structs.replace(record, position=position)]


@pytest.mark.parametrize("names", [["a"], ["a", "b'c"]])
def test_a_generated_builder_makes_rows_of_columns(names: list[str]) -> None:
    columns = [[f"{name}{number}" for number in range(3)] for name in names]
    assert row_builder(names)(columns) == [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
