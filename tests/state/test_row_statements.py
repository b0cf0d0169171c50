"""Inserts and updates of rows by key, on both databases."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from conduit_dagster.state.row_statements import insert, put, update
from conduit_dagster.state.tables import deliveries, offsets

OWN = {"pipeline": "p", "consumer": "out", "source": "in"}
DELIVERY = {"pipeline": "p", "step": 1, "skip": 0, "hash": "", "pending": "", "staged": ""}


def _delivery(consumer: str, state: str) -> dict[str, Any]:
    return {**DELIVERY, "consumer": consumer, "state": state, "handled": 1}


def _found(connection: sa.Connection) -> list[tuple[str, str, int]]:
    column = deliveries.c
    rows = connection.execute(sa.select(column.consumer, column.state, column.handled).order_by(column.consumer))
    return [(row[0], row[1], row[2]) for row in rows]


def test_a_column_that_rises_never_falls(database: sa.Engine) -> None:
    with database.begin() as connection:
        for number in (5, 3, 7, 6):
            put(connection, offsets, [{**OWN, "namespace": "*", "offset": number, "at_ns": number}], rising="offset")
        assert connection.execute(sa.select(offsets.c.offset, offsets.c.at_ns)).all() == [(7, 7)]
        put(connection, offsets, [{**OWN, "namespace": "*", "offset": 2, "at_ns": 8}])
        assert connection.execute(sa.select(offsets.c.offset, offsets.c.at_ns)).all() == [(2, 8)]


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ({"consumer": "a"}, ["a"]),
        ({"consumer": ("a", "c")}, ["a", "c"]),
        ({"consumer": ("a", "b"), "state": ("open", "split")}, ["a"]),
        ({"consumer": "a", "state": "done"}, []),
        ({"consumer": ()}, []),
    ],
)
def test_the_rows_with_the_key_change(database: sa.Engine, key: dict[str, Any], changed: list[str]) -> None:
    with database.begin() as connection:
        insert(connection, deliveries, [])
        insert(connection, deliveries, [_delivery("a", "open"), _delivery("b", "done"), _delivery("c", "split")])
        before = _found(connection)
        is_one = update(connection, deliveries, {"pipeline": "p", **key}, {"state": "void"}, add={"handled": 2})
        after = [(name, "void", 3) if name in changed else (name, state, n) for name, state, n in before]
        assert (is_one, _found(connection)) == (bool(changed), after)
        assert update(connection, deliveries, key, add={"handled": -1}) == (bool(changed) and "state" not in key)
