"""Which rows belong to a table of the postgres source: children, partitions, awkward names."""

from __future__ import annotations

from typing import Any

import pytest
from lab.postgres_reading import PostgresReading, drained

from conduit_dagster.record import Record


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
