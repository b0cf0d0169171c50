"""What the postgres destination stages: every value comes back, and equal records make equal bytes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lab.postgres_lab import PostgresLab, change, child, create
from msgspec import structs

from conduit_dagster import storage
from conduit_dagster.connectors.postgres.encode import copy_lines
from conduit_dagster.connectors.postgres.sqlstates import CellError
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Delivery, Keys

MARKS = [
    "", " ", "null", "\\N", "\\.", "\\",
    "\\\\", '"', '""', '\\"', '"\\', '\\\\"', ",", '","', "],[", "a\tb", "\n", "\r\n",
    "\n\\", "\\n", "\\u0001", "\\\\u0001", "\\x01", '"\n"', "\t\"\t", "\x7f", "\u2028", "é😀",
]  # fmt: skip
"""Texts that mean something on the way through JSON to COPY's text."""
FLOATS = [0.0, -0.0, 0.1, 1e16, 1e-7, 1.5e300, 5e-324, 123456789012345680.0, math.inf, -math.inf]


def texts() -> list[str]:
    """Marks, every character that COPY or JSON could escape, and both mixed."""
    pick = random.Random(7)
    alphabet = [*map(chr, range(1, 128)), *MARKS]
    mixed = ["".join(pick.choices(alphabet, k=pick.randrange(12))) for _ in range(3_000)]
    return [*MARKS, *map(chr, range(1, 256)), *mixed]


def contents(delivery: Delivery) -> list[tuple[int, int, str]]:
    """What the engine compares if a part is staged again."""
    return [(part.records, part.bytes, part.sha256) for part in delivery.parts]


def staged(delivery: Delivery) -> list[bytes]:
    """The parts' bytes."""
    return [b"".join(storage.chunks(storage.join(delivery.staging, part.name))) for part in delivery.parts]


def test_every_text_comes_back(lab: PostgresLab) -> None:
    """As text, within a document, in an array and beside nulls; row by row or in one block."""
    lab.execute("CREATE TABLE t (id int, s text, n text, j jsonb, a text[])")
    wanted = texts()
    records = [create(i, s=s, n=s if i % 3 else None, j={"s": s}, a=[s]) for i, s in enumerate(wanted)]
    lab.deliver(lab.destination(), records)
    assert lab.rows() == [(i, s, s if i % 3 else None, {"s": s}, [s]) for i, s in enumerate(wanted)]


def test_every_number_comes_back(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (id int, f float8, n numeric, i bigint)")
    integers = [0, 1, -1, 2**63 - 1, -(2**63)] * 2
    big = [2**64, 10**40, -(10**40), 2**63, 7] * 2
    rows = list(zip(range(10), FLOATS, big, integers, strict=True))
    lab.deliver(lab.destination(), [create(i, f=f, n=n, i=number) for i, f, n, number in rows])
    found = lab.rows()
    assert found == rows
    assert math.copysign(1, found[1][1]) == -1
    lab.deliver(lab.destination(), [create(10, f=math.nan, n=1), create(11, f=1.0, n=math.nan)])
    assert [row[1:3] for row in lab.execute("SELECT id, f::text, n::text FROM t WHERE id > 9 ORDER BY id")] == [
        ("NaN", "1"),
        ("1", "NaN"),
    ]


def test_a_bad_character_refuses_its_record_alone(lab: PostgresLab) -> None:
    """NUL and half a character, among texts that look like their escapes."""
    lab.execute("CREATE TABLE t (id int, s text)")
    wanted = ["\\u0000", "a\0", "\\\\u0000", "\0", '"\0"', "\ud800", "\\\0", "sound"]
    lab.deliver(lab.destination(), [create(i, s=s) for i, s in enumerate(wanted)])
    assert [refusal.place for refusal in lab.refused] == [1, 3, 4, 5, 6]
    assert {refusal.nack.code for refusal in lab.refused if refusal.place != 5} == {"postgres.nul"}
    assert lab.rows() == [(0, "\\u0000"), (2, "\\\\u0000"), (7, "sound")]


def test_a_nul_is_told_from_its_escape() -> None:
    assert copy_lines([["\\u0000"], [1]]) == b"\\\\u0000\t1\n"
    with pytest.raises(CellError):
        copy_lines([["\\\0"]])


def test_a_row_does_not_depend_on_those_beside_it(lab: PostgresLab) -> None:
    """Otherwise other blocks of the same records would have another digest."""
    lab.execute("CREATE TABLE t (id int, s text, f float8, v text)")
    values: list[Any] = [*FLOATS, 1, True, "x", None, {"a": [1e16, None]}, [1], 10**30]
    records = [create(i, s=s, f=FLOATS[i % 10], v=values[i % len(values)]) for i, s in enumerate(texts()[:600])]
    destination = lab.destination()
    parts = [lab.stage(destination, records, block=block) for block in (1, 7, 1_000)]
    assert lab.refused == []
    assert contents(parts[0]) == contents(parts[1]) == contents(parts[2])


NEW = [create(2, a=1e16, b=True), create(1, a=1, b=None, z={"k": [1e-7]}), create(3, a=-0.5, d=[1], s="x")]
KEYED = [change("update", 2, z=1e16, a="x", m=None), change("delete", 3), change("create", 4, m=7)]


@pytest.mark.parametrize(
    ("records", "ids"),
    [(NEW, [1, 2, 3]), (KEYED, [2, 4]), ([*NEW, *KEYED], [1, 2, 4])],
    ids=["inserts", "by key", "both"],
)
def test_a_part_staged_again_is_the_same_though_a_child_made_its_table(
    lab: PostgresLab, records: Sequence[Record], ids: list[int]
) -> None:
    """Prepared parts must be found again, otherwise the step could never be finished (DELIVERY.md, Start)."""
    destination = lab.destination(create_table="auto", key="id")
    first = lab.stage(destination, records[:2], records[2:])
    destination.publish(child(first, 0))
    assert lab.execute("SELECT id FROM t") == [(2,)]
    again = lab.stage(destination, records[:2], records[2:])
    assert contents(again) == contents(first) and staged(again) == staged(first)
    for place in range(1, len(records)):
        destination.publish(child(again, place))
    assert lab.refused == []
    assert [number for (number,) in lab.execute("SELECT id FROM t ORDER BY id")] == ids


def test_a_missing_table_is_known_to_whoever_publishes(lab: PostgresLab) -> None:
    """Another process, which has only the staged files; for two parts, one of which saw less."""
    delivery = lab.stage(lab.destination(create_table="auto"), [create(1)], [create(2, v=0.5)])
    lab.destination(create_table="auto").publish(delivery)
    assert lab.rows() == [(1, None), (2, 0.5)]


@pytest.mark.parametrize("settings", [{}, {"key": "id"}], ids=["inserts", "by key"])
def test_a_table_that_is_made_has_its_columns_in_the_order_of_the_records(
    lab: PostgresLab, settings: dict[str, str]
) -> None:
    conflict = "update" if settings else "error"
    destination = lab.destination(create_table="auto", on_conflict=conflict, **settings)
    lab.deliver(destination, [create(1, zip="1", name="a"), create(2, zip="1", city="b", name="a")])
    columns = "SELECT attname::text FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0 ORDER BY attnum"
    assert [name for (name,) in lab.execute(columns)] == ["id", "zip", "name", "city"]


@pytest.mark.parametrize("settings", [{}, {"key": "id"}], ids=["inserts", "by key"])
def test_a_key_that_is_no_object_makes_no_difference(lab: PostgresLab, settings: dict[str, str]) -> None:
    """So a source may omit it, with the position."""
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    destination = lab.destination(**settings)
    assert destination.reads_keys is Keys.OBJECTS
    bare = [create(1, n=2), create(2, n=3)]
    whole = [structs.replace(record, key=b"17", position=f"3:{place}") for place, record in enumerate(bare)]
    assert contents(lab.stage(destination, bare)) == contents(lab.stage(destination, whole))


def test_a_table_that_the_key_names_needs_every_key(lab: PostgresLab) -> None:
    assert lab.destination(table='{{ printf "%s" .Key }}').reads_keys is Keys.ALL
    assert lab.destination(table='{{ index .Metadata "opencdc.collection" }}').reads_keys is Keys.OBJECTS


# -- fields without a column of their own -------------------------------------------------------------------------


def test_a_field_that_only_later_records_have_is_kept_beside_an_ignored_one(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (id int, city text, zip text)")
    found = [{"id": 1, "city": "Bonn", "debug": 1}, {"id": 2, "city": "Kiel", "zip": "24103"}]
    lab.deliver(lab.destination(unmapped="ignore"), [Record(i, {}, one) for i, one in enumerate(found)])
    assert (lab.rows(), lab.refused) == ([(1, "Bonn", None), (2, "Kiel", "24103")], [])


def test_a_record_without_any_column_is_refused_whatever_is_beside_it(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (id int)")
    lab.deliver(lab.destination(unmapped="ignore"), [Record(0, {}, {"junk": 1}), Record(1, {}, {"id": 1})])
    assert (lab.rows(), [refusal.place for refusal in lab.refused]) == ([(1,)], [0])


def test_records_that_only_fit_alone_are_all_written(lab: PostgresLab) -> None:
    """Two names of one column."""
    lab.execute("CREATE TABLE t (id int, title text)")
    found = [{"id": 1, "name": "a"}, {"id": 2, "title": "b"}]
    lab.deliver(lab.destination(mapping="name:title"), [Record(i, {}, one) for i, one in enumerate(found)])
    assert (lab.rows(), lab.refused) == ([(1, "a"), (2, "b")], [])


def test_unmapped_fields_overwrite_no_field_of_the_record(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (id int, unmapped jsonb)")
    found = [{"id": 1, "unmapped": {"x": 1}}, {"id": 2, "unmapped": {"x": 2}, "junk": 5}, {"id": 3, "junk": 6}]
    lab.deliver(lab.destination(unmapped="json"), [Record(i, {}, one) for i, one in enumerate(found)])
    assert lab.rows() == [(1, {"x": 1}), (3, {"junk": 6})]
    assert [(refusal.place, refusal.nack.code) for refusal in lab.refused] == [(1, "postgres.two_fields")]


# -- damage -------------------------------------------------------------------------------------------------------


def test_damaged_staging_is_named(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (id int)")
    destination = lab.destination()
    delivery = lab.stage(destination, [create(1)])
    (Path(delivery.staging) / delivery.parts[0].name).write_bytes(b"x" * delivery.parts[0].bytes)
    with pytest.raises(FatalError) as error:
        destination.publish(delivery)
    assert error.value.code == "postgres.staging"
