"""Which rows belong to a table of the postgres source: children, partitions, awkward names."""

from __future__ import annotations

from typing import Any

import pytest
from lab.postgres_reading import PostgresReading, drained, records_of, travelled

from conduit_dagster.connectors.postgres.change_marks import unchanged_fields
from conduit_dagster.connectors.postgres.settings import TableName, table_name
from conduit_dagster.record import Record
from conduit_dagster.sdk import Limit


def shown(records: list[Record]) -> list[tuple[str, str, Any]]:
    return [(record.operation, record.collection, record.key) for record in records]


# -- children -----------------------------------------------------------------------------------------------------

FAMILY = """
    CREATE TABLE a (id int PRIMARY KEY, v int); CREATE TABLE b (PRIMARY KEY (id)) INHERITS (a);
    INSERT INTO a VALUES (1, 0), (2, 0); INSERT INTO b VALUES (2, 0), (3, 0)
"""


@pytest.mark.parametrize(("tables", "has_child"), [("a", False), ("a, b", True), ("b, a", True), ("*", True)])
def test_a_child_is_a_table_of_its_own(reading: PostgresReading, tables: str, has_child: bool) -> None:
    """As in PostgreSQL's own initial copy. Both may have rows of the same key."""
    reading.execute(FAMILY)
    source = reading.source(tables=tables)
    copied, position = drained(source)
    reading.execute("UPDATE a SET v = 1; INSERT INTO a VALUES (4, 0); INSERT INTO b VALUES (5, 0); TRUNCATE a")
    changed, _ = drained(source, position)
    rows = {"a": [1, 2], "b": [2, 3]} if has_child else {"a": [1, 2]}
    new = {"a": 4, "b": 5}
    for table, ids in rows.items():
        assert [one for one in shown(copied + changed) if one[1] == table] == [
            *[("snapshot", table, {"id": i}) for i in ids],
            *[("update", table, {"id": i}) for i in ids],
            ("create", table, {"id": new[table]}),
            ("delete", table, None),
        ]
    assert {record.collection for record in copied + changed} == set(rows)


def test_a_child_that_is_published_already_can_be_joined_by_its_parent(reading: PostgresReading) -> None:
    reading.execute(FAMILY)
    _, position = drained(reading.source(tables="b"))
    records, _ = drained(reading.source(tables="b, a"), position)
    assert shown(records) == [("snapshot", "a", {"id": 1}), ("snapshot", "a", {"id": 2})]


def test_polling_a_parent_leaves_its_children_out(reading: PostgresReading) -> None:
    reading.execute(FAMILY)
    copied, position = drained(reading.source(tables="a", cdcMode="long_polling"))
    reading.execute("INSERT INTO b VALUES (4, 0); INSERT INTO a VALUES (5, 0)")
    polled, _ = drained(reading.source(tables="a", cdcMode="long_polling"), position)
    assert shown(copied + polled) == [
        *[("snapshot", "a", {"id": i}) for i in (1, 2)],
        ("create", "a", {"id": 5}),
    ]


# -- names --------------------------------------------------------------------------------------------------------

NAMES = [
    ("s", "A b"), ("S.x", "t"), ("s.t", "u"), ("s", "t.u"), ('"s"', '"t"'), ('S"x', 'T"u'), ("s.", ".t"),
    (" s", "t "), ("public", "t.u"), ("public", '"t"'), ("s", "t,u"),
]  # fmt: skip


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.parametrize(("schema", "table"), NAMES)
def test_any_name_of_a_schema_and_a_table_is_read(reading: PostgresReading, schema: str, table: str) -> None:
    """A copy that is interrupted, then changes; a destination takes the collection as the name of the same table."""
    name = f"{quoted(schema)}.{quoted(table)}"
    reading.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}; CREATE TABLE {name} (id int PRIMARY KEY)")
    reading.execute(f"INSERT INTO {name} VALUES (1), (2), (3); CREATE TABLE a (id int PRIMARY KEY)")
    settings: dict[str, Any] = {"tables": f"a, {name}", "onSchemaChange": "stop"}
    source = reading.source(**settings)
    half = travelled(source.latest(source.initial(), Limit(2, 10**9)))
    records = records_of(source, source.initial(), half)
    source.close()
    reading.execute(f"UPDATE {name} SET id = 4 WHERE id = 1; INSERT INTO {name} VALUES (5)")
    rest, position = drained(reading.source(**settings), half)
    reading.execute(f"TRUNCATE {name}")
    records += rest + drained(reading.source(**settings), position)[0]
    assert [(record.operation, record.key) for record in records] == [
        *[("snapshot", {"id": i}) for i in range(1, 6)],
        ("delete", {"id": 1}),
        ("delete", None),
    ]
    assert {table_name(record.collection or "", "public") for record in records} == {TableName(schema, table)}


def test_a_star_leaves_out_a_schema_whose_name_begins_alike(reading: PostgresReading) -> None:
    reading.execute('CREATE TABLE t (id int PRIMARY KEY); CREATE SCHEMA "public.x"')
    reading.execute(f'CREATE TABLE "public.x".t (id int PRIMARY KEY); CREATE PUBLICATION {reading.name} FOR ALL TABLES')
    source = reading.source()
    _, position = drained(source)
    reading.execute('INSERT INTO "public.x".t VALUES (1); INSERT INTO t VALUES (2)')
    assert shown(drained(source, position)[0]) == [("create", "t", {"id": 2})]
    reading.execute(f"DROP PUBLICATION {reading.name}")


def test_unchanged_large_values_are_named_whatever_their_columns_are_called(reading: PostgresReading) -> None:
    names = ["a,b", '"q"', 'x"y', " s ", "plain"]
    columns = ", ".join(f"{quoted(name)} text" for name in names)
    reading.execute(f"CREATE TABLE a (id int PRIMARY KEY, n int, {columns})")
    for name in names:
        reading.execute(f"ALTER TABLE a ALTER {quoted(name)} SET STORAGE EXTERNAL")
    reading.execute("INSERT INTO a SELECT 1, 1, x, x, x, x, x FROM repeat('x', 3000) x")
    source = reading.source()
    _, position = drained(source)
    reading.execute("UPDATE a SET n = 2")
    (record,), _ = drained(source, position)
    assert record.after == {"id": 1, "n": 2} and unchanged_fields(record) == names
