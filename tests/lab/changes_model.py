"""Changes of two tables, as records of a change-data-capture source, and a model that applies them one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from conduit_dagster.connectors.postgres.change_marks import TRUNCATE, UNCHANGED_TOAST
from conduit_dagster.record import Record

TABLES = {"t": "t", "s.u": "s/u"}
"""Collections, with their tables' names in ``PostgresLab.rows``."""
COLUMNS = "id int PRIMARY KEY, a int DEFAULT 7, b int, c int"
NEW = {"a": 7, "b": None, "c": None}
VALUES = ("a", "b", "c")
Rows = dict[int, dict[str, Any]]


class Change(NamedTuple):
    """One record; ``old`` is used only if the key changes."""

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
    """Tables as dictionaries. ``apply`` returns the code of a refusal, or an empty string."""

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


def create_tables() -> str:
    """Return the statements that recreate both tables, empty."""
    made = "; ".join(f"CREATE TABLE {name} ({COLUMNS})" for name in TABLES)
    return f"CREATE SCHEMA IF NOT EXISTS s; DROP TABLE IF EXISTS {', '.join(TABLES)}; {made}"


def by_id(rows: list[tuple[Any, ...]]) -> Rows:
    """Return a table's rows in the form of the model."""
    return {row[0]: dict(zip(VALUES, row[1:], strict=True)) for row in rows}
