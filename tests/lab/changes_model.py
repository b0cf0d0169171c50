"""Changes of two tables, as records of a change-data-capture source, and a model that applies them one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from conduit_dagster.change_marks import TRUNCATE, UNCHANGED_TOAST
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

    @property
    def mark(self) -> tuple[bool, frozenset[str]] | None:
        """What changes must have in common to exchange keys; None for one that leaves the key."""
        if "move" not in self.kind or self.old == self.number:
            return None
        return "partial" in self.kind and len(self.values) < len(VALUES), frozenset(self.values)

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


def _columns(changes: Sequence[Change]) -> set[frozenset[str]]:
    """The columns that each record names, whether it holds them or not."""
    with_values = [one for one in changes if one.kind not in ("delete", "truncate")]
    return {frozenset(VALUES if "partial" in one.kind else one.values) for one in with_values}


class Model:
    """Tables as dictionaries. ``apply`` returns the code of a refusal, or an empty string."""

    def __init__(self, on_conflict: str) -> None:
        self.tables: dict[str, Rows] = {name: {} for name in TABLES}
        self._on_conflict = on_conflict
        self.is_doubtful = False
        """Keys were exchanged by changes that lie in one COPY or in several: that depends on blocks and tasks."""

    def apply_all(self, changes: Sequence[Change]) -> list[str]:
        """Applies a delivery: one by one, but for keys that consecutive changes exchange."""
        codes, done = [""] * len(changes), set[int]()
        for place, change in enumerate(changes):
            if place in done:
                continue
            run = self._exchange(changes, place)
            self.is_doubtful |= bool(run) and (run[-1] - run[0] >= len(run) or len(_columns(changes)) > 1)
            if run:
                self._exchanged([changes[number] for number in run])
                done.update(run)
            else:
                codes[place] = self.apply(change)
        return codes

    def _exchange(self, changes: Sequence[Change], place: int) -> list[int]:
        first, run, olds, news = changes[place], list[int](), list[int](), list[int]()
        rows = self.tables[first.table]
        for number in range(place, len(changes)):
            one = changes[number]
            if one.kind == "truncate" or (one.table == first.table and (not one.mark or one.mark != first.mark)):
                return []
            if one.table == first.table:
                run, olds, news = [*run, number], [*olds, one.old], [*news, one.number]
                if all(new not in rows or new in olds for new in news):
                    break
        else:
            return []
        is_whole = len(set(olds) & rows.keys()) == len(set(news)) == len(run) > 1
        return run if is_whole and first.old in rows else []

    def _exchanged(self, changes: Sequence[Change]) -> None:
        rows = self.tables[changes[0].table]
        moved = {change.number: {**rows[change.old], **change.values} for change in changes}
        for change in changes:
            del rows[change.old]
        rows.update(moved)

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
