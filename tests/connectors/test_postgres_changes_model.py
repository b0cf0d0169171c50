"""Any history of changes of two tables, in any deliveries, beside a model that applies record by record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.postgres_lab import PostgresLab

from conduit_dagster.connectors.postgres.change_marks import TRUNCATE, UNCHANGED_TOAST
from conduit_dagster.record import Record
from conduit_dagster.sdk import Rejected

pytestmark = pytest.mark.slow
TABLES = {"t": "t", "s.u": "s/u"}
COLUMNS = "id int PRIMARY KEY, a int DEFAULT 7, b int, c int"
NEW = {"a": 7, "b": None, "c": None}
VALUES = ("a", "b", "c")
Rows = dict[int, dict[str, Any]]


class Change(NamedTuple):
    """One record: ``old`` counts only where the key changes."""

    kind: str
    table: str
    number: int
    old: int
    values: dict[str, int]

    def record(self) -> Record:
        metadata = {"opencdc.collection": self.table}
        if self.kind == "truncate":
            return Record(0, {**metadata, TRUNCATE: "true"}, operation="delete")
        key = {"id": self.number}
        if self.kind == "delete":
            return Record(0, metadata, None, key, operation="delete")
        lacks = [name for name in VALUES if name not in self.values]
        metadata |= {UNCHANGED_TOAST: ",".join(lacks)} if "partial" in self.kind else {}
        before = {"id": self.old} if "move" in self.kind else None
        operation = self.kind if self.kind in ("create", "snapshot") else "update"
        return Record(0, metadata, {**key, **self.values}, key, before, operation)


class Model:
    """Dictionaries. ``apply`` returns the code of a refusal, or an empty string."""

    def __init__(self, on_conflict: str) -> None:
        self.tables: dict[str, Rows] = {name: {} for name in TABLES}
        self._on_conflict = on_conflict

    def apply(self, change: Change) -> str:
        rows = self.tables[change.table]
        how: dict[str, Callable[[Rows, Change], str]] = {
            "create": self._create,
            "delete": self._delete,
            "truncate": self._truncate,
        }
        return how.get(change.kind, self._update)(rows, change)

    def _create(self, rows: Rows, change: Change) -> str:
        if change.number not in rows or self._on_conflict == "update":
            return self._update(rows, change)
        return "" if self._on_conflict == "ignore" else "postgres.unique_violation"

    def _delete(self, rows: Rows, change: Change) -> str:
        rows.pop(change.number, None)
        return ""

    def _truncate(self, rows: Rows, change: Change) -> str:
        rows.clear()
        return ""

    def _update(self, rows: Rows, change: Change) -> str:
        if "move" in change.kind and change.old != change.number and change.old in rows:
            if change.number in rows and self._on_conflict != "update":
                return "postgres.unique_violation"
            rows[change.number] = rows.pop(change.old)
        is_partial = "partial" in change.kind and len(change.values) < len(VALUES)
        if is_partial and change.number not in rows:
            return "postgres.unchanged_toast"
        rows[change.number] = {**rows.get(change.number, NEW), **change.values}
        return ""


KINDS = ["create", "snapshot", "update", "partial", "move", "partial move", "delete"]
SHAPES = st.sampled_from([[("a", "b", "c")], [("a", "b")], [("a", "b", "c"), ("a", "b"), ("c",), ()]])


@st.composite
def histories(draw: st.DrawFn) -> list[list[Change]]:
    """Few keys, so that they meet; kinds, shapes and truncates more or less often, as the draw has it."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, unique=True))
    kinds += ["truncate"] * draw(st.integers(0, 1))
    shapes = draw(SHAPES)
    count = draw(st.integers(2, 6))
    keys, small = st.integers(1, count), st.integers(0, 9)
    one = st.builds(
        lambda kind, table, number, old, values, shape: Change(
            kind, table, number, old, {name: values[VALUES.index(name)] for name in shape}
        ),
        st.sampled_from(kinds),
        st.sampled_from(list(TABLES)),
        keys,
        keys,
        st.tuples(small, small, small),
        st.sampled_from(shapes),
    )
    return draw(st.lists(st.lists(one, min_size=1, max_size=12), min_size=1, max_size=4))


@pytest.mark.parametrize("on_conflict", ["error", "update", "ignore"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories(), border=st.integers(0, 12), block=st.sampled_from([1, 3, 100]))
def test_any_history_leaves_what_its_records_leave_one_by_one(
    lab: PostgresLab, on_conflict: str, history: list[list[Change]], border: int, block: int
) -> None:
    """However a delivery is cut into tasks and blocks; of its refused records all are named, and only those."""
    lab.execute("CREATE SCHEMA IF NOT EXISTS s; DROP TABLE IF EXISTS t, s.u")
    lab.execute(f"CREATE TABLE t ({COLUMNS}); CREATE TABLE s.u ({COLUMNS})")
    destination = lab.destination(table='{{ index .Metadata "opencdc.collection" }}', on_conflict=on_conflict)
    model = Model(on_conflict)
    try:
        for changes in history:
            codes = [model.apply(change) for change in changes]
            records = [change.record() for change in changes]
            refused = [(place, code) for place, code in enumerate(codes) if code]
            if refused:
                with pytest.raises(Rejected) as error:
                    destination.publish(lab.stage(destination, records[:border], records[border:], block=block))
                assert [(one.place, one.nack.code) for one in error.value.refusals] == refused
                records = [record for record, code in zip(records, codes, strict=True) if not code]
            destination.publish(lab.stage(destination, records[:border], records[border:], block=block))
            found = {name: lab.rows(where) for name, where in TABLES.items()}
            assert {
                name: {row[0]: dict(zip(VALUES, row[1:], strict=True)) for row in rows} for name, rows in found.items()
            } == (model.tables)
    finally:
        destination.close()
    assert lab.refused == []
