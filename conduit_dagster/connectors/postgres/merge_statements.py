"""SQL statements of a merge: templates filled with the names of one group of lines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec
from psycopg import sql

from conduit_dagster.connectors.postgres.keyed_rows import MOVES
from conduit_dagster.connectors.postgres.staged_rows import LineGroup, old_names

_ORDER = sql.Identifier("conduit order")
_OPERATION = sql.Identifier("conduit operation")
OnConflict = Literal["error", "update", "ignore"]
_FIX = (
    "left out columns that it did not change: copy the row again, for example by a new snapshot, or "
    "set REPLICA IDENTITY FULL on the source's table"
)
_COMMA, _AND = sql.SQL(", "), sql.SQL(" AND ")
_ALL = """(
    SELECT *, left({operation}, 1) AS "conduit last", left({operation}, 1) AS "conduit first",
        left({operation}, 1) = 'd' AS "conduit deleted", true AS "conduit is last", false AS "conduit doubtful"
    FROM {merge} WHERE NOT {moved}
)"""


class MarkedColumns(NamedTuple):
    """A staged mark, with the columns that its hex digits select."""

    mark: str
    columns: tuple[str, ...]

    @property
    def change(self) -> str:
        """The ``Change`` of the mark."""
        return self.mark[0]


class MergeStatements:
    """Filler of statement templates, in which ``m`` is the temporary table and ``t`` the target."""

    def __init__(self, group: LineGroup) -> None:
        self._group = group
        # name of the temporary table, one per kind of lines: a transaction may have several
        self.name = f"conduit_merge_{hashlib.sha256(msgspec.json.encode(group)).hexdigest()[:12]}"
        self._old = old_names(group.key if group.moves else ())
        self._rows: sql.Composable = self._temporary("_last")
        self._in_order = sql.SQL("ORDER BY {}").format(_ORDER)

    def read_all(self) -> None:
        """Read the staged rows directly, for a batch without repeated keys: each row is the first and the last of its
        key."""
        self._rows = self.filled(_ALL)
        # without an index, a temporary table is always scanned from its beginning, so in insertion order
        self._in_order = sql.SQL("")

    def filled(self, text: str, columns: tuple[str, ...] = (), **more: sql.Composable) -> sql.Composed:
        """Return a template as a statement; ``columns`` are the columns to write, by default all of the group.

        ``more``: additional placeholders of this template.
        """
        key, columns = self._group.key, columns or self._group.columns
        others = [name for name in columns if name not in key]
        changes = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others)
        return sql.SQL(text).format(  # pyright: ignore[reportArgumentType]  # all texts are literals of the merge
            merge=self._temporary(""),
            merge_text=sql.Literal(f"pg_temp.{self.name}"),
            last=self._temporary("_last"),
            rows=self._rows,
            in_order=self._in_order,
            index=sql.Identifier(f"{self.name}_order"),
            target=self._group.table.quoted,
            order=_ORDER,
            operation=_OPERATION,
            columns=_names(columns),
            key=_names(key),
            same=_AND.join(_pairs("t.{} = m.{}", key, key)),
            action=sql.SQL("UPDATE SET {}").format(changes) if others else sql.SQL("NOTHING"),
            changes=_COMMA.join(_pairs("{} = m.{}", others, others)),
            values=_COMMA.join(_pairs("{} = m.{}", columns, columns)),
            moved=sql.SQL("left({}, 1) IN ({})").format(_OPERATION, _COMMA.join(map(sql.Literal, sorted(MOVES)))),
            old=_names(self._old),
            was=_AND.join(_pairs("t.{} = m.{}", key, self._old)),
            stays=_AND.join(_pairs("m.{} = m.{}", key, self._old)),
            old_names=sql.Composed([sql.SQL(", {}").format(sql.Identifier(name)) for name in self._old]),
            no_row=sql.Literal(f"the table {self._group.table} has no row of this key, and the update {_FIX}"),
            old_columns=sql.Composed(_pairs(", {} AS {}", key, self._old)),
            **more,
        )

    def _temporary(self, suffix: str) -> sql.Identifier:
        return sql.Identifier("pg_temp", f"{self.name}{suffix}")


def _names(names: Iterable[str]) -> sql.Composed:
    return _COMMA.join(map(sql.Identifier, names))


def _pairs(text: str, first: Iterable[str], second: Iterable[str]) -> list[sql.Composed]:
    """Fill the template with each pair of names; return an empty list if either list is empty."""
    form = sql.SQL(text)  # pyright: ignore[reportArgumentType]  # literals of this file
    return [form.format(sql.Identifier(one), sql.Identifier(other)) for one, other in zip(first, second, strict=False)]
