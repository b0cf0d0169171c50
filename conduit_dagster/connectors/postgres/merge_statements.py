"""SQL of a merge: templates filled with the names of one group of lines, and the loop that applies it row by row."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal, NamedTuple

import msgspec
import psycopg
from psycopg import sql

from conduit_dagster.connectors.postgres.catalog import read_table
from conduit_dagster.connectors.postgres.connection import Connection, value_of
from conduit_dagster.connectors.postgres.sqlstates import NO_ROW, RowError, is_data
from conduit_dagster.connectors.postgres.staged_rows import MOVES, PARTIAL, LineGroup, old_names
from conduit_dagster.connectors.postgres.table_plan import CopyBatch

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
            target_text=sql.Literal(self._group.table.quoted.as_string(None)),
            last=self._temporary("_last"),
            rows=self._rows,
            in_order=self._in_order,
            index=sql.Identifier(f"{self.name}_order"),
            target=self._group.table.quoted,
            order=_ORDER,
            operation=_OPERATION,
            mark=sql.Literal(self._group.mark),
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
            **more,
        )

    def staged(self, domains: Collection[str]) -> sql.Composed:
        """Return the columns of the temporary table, those of ``domains`` with their base type: a domain may refuse the
        null that stands for a value that a line does not hold."""
        columns = (*self._group.columns, *self._group.key[: len(self._old)])
        names = (*self._group.columns, *self._old)
        # with NULL beside it, a value has the base type
        based, plain = sql.SQL("coalesce({}, NULL) AS {}"), sql.SQL("{} AS {}")
        return _COMMA.join(
            (based if column in domains else plain).format(sql.Identifier(column), sql.Identifier(name))
            for column, name in zip(columns, names, strict=True)
        )

    def _temporary(self, suffix: str) -> sql.Identifier:
        return sql.Identifier("pg_temp", f"{self.name}{suffix}")


def _names(names: Iterable[str]) -> sql.Composed:
    return _COMMA.join(map(sql.Identifier, names))


def _pairs(text: str, first: Iterable[str], second: Iterable[str]) -> list[sql.Composed]:
    """Fill the template with each pair of names; return an empty list if either list is empty."""
    form = sql.SQL(text)  # pyright: ignore[reportArgumentType]  # literals of this file
    return [form.format(sql.Identifier(one), sql.Identifier(other)) for one, other in zip(first, second, strict=False)]


_MOST: Final = 1_000
"""Maximum number of rows of one exchange: each additional row is checked together with all before it."""
_HAS_OTHERS = """
    SELECT EXISTS (
        SELECT FROM pg_constraint c JOIN pg_class r ON r.oid = c.confrelid JOIN pg_namespace n ON n.oid = r.relnamespace
        WHERE c.contype = 'f' AND n.nspname = %s AND r.relname = %s
            AND (c.confdeltype <> 'a' OR c.confupdtype <> 'a')
    ) OR EXISTS (
        SELECT FROM pg_inherits i JOIN pg_class r ON r.oid = i.inhparent JOIN pg_namespace n ON n.oid = r.relnamespace
        WHERE r.relkind <> 'p' AND n.nspname = %s AND r.relname = %s)
"""
_THESE = "m.{order} BETWEEN conduit_row.n AND conduit_to"
# widen the range until every occupied key belongs to one of its rows
_WIDEN = (
    "conduit_to := conduit_row.n; IF EXISTS (SELECT FROM {target} t, {merge} m WHERE " + _THESE + " AND {was}) THEN"
    " WHILE EXISTS (SELECT FROM {merge} m JOIN {target} t ON {same} WHERE " + _THESE + " AND NOT EXISTS ("
    "SELECT FROM {merge} m WHERE " + _THESE + " AND {was})) LOOP conduit_to := conduit_to + 1;"
    f" IF conduit_to >= conduit_row.n + {_MOST} OR NOT EXISTS (SELECT FROM {{merge}} m"
    " WHERE m.{order} = conduit_to AND m.{operation} = conduit_row.mark)"
    " THEN conduit_to := conduit_row.n; EXIT; END IF; END LOOP; END IF;"
)
# every row exists, occurs once, and gets a key of its own
_IS_EXCHANGE = (
    "conduit_to > conduit_row.n"
    " AND (SELECT count(*) FROM (SELECT DISTINCT {old} FROM {merge} m JOIN {target} t ON {was} WHERE " + _THESE + ") a)"
    " > conduit_to - conduit_row.n"
    " AND (SELECT count(*) FROM (SELECT DISTINCT {new} FROM {merge} m WHERE " + _THESE + ") b)"
    " > conduit_to - conduit_row.n"
)
# the sort makes sure that all rows are deleted before the first one is inserted
_EXCHANGE = (
    "WITH gone AS (DELETE FROM {target} t USING {merge} m WHERE " + _THESE + " AND {was} RETURNING m.{order}, t.*)"
    " INSERT INTO {target} ({all_columns}) OVERRIDING SYSTEM VALUE SELECT {all_values}"
    " FROM gone t JOIN {merge} m ON m.{order} = t.{order} ORDER BY m.{order};"
)


class _KeyExchange:
    """Branch of the merge loop that applies key exchanges."""

    def __init__(self, connection: Connection, group: LineGroup) -> None:
        self._key = group.key
        table = read_table(connection, group.table) if group.moves else None
        # not with referential actions: a deletion would cascade to the referencing rows; nor with children by INHERITS:
        # their rows would become rows of the table itself, without the columns that only a child has
        if table is None or value_of(connection, _HAS_OTHERS, (group.table.schema, group.table.name) * 2):
            self._columns: list[str] = []
        else:
            self._columns = [column.name for column in table.columns.values() if not column.generated]

    def before(self, statements: MergeStatements, shape: MarkedColumns, otherwise: sql.Composed) -> sql.Composed:
        """Return the branch for a change of a key; ``otherwise`` is for a row that takes part in no exchange."""
        if not self._columns:
            return otherwise
        changed = [sql.Identifier("m" if name in shape.columns else "t", name) for name in self._columns]
        names = [sql.Identifier(name) for name in self._columns]
        exchange = statements.filled(
            _EXCHANGE, all_columns=sql.SQL(", ").join(names), all_values=sql.SQL(", ").join(changed)
        )
        new = sql.SQL(", ").join(sql.Identifier("m", name) for name in self._key)
        widen, condition = statements.filled(_WIDEN), statements.filled(_IS_EXCHANGE, new=new)
        return sql.SQL("{} IF {} THEN {} conduit_done := conduit_to; ELSE {} END IF;").format(
            widen, condition, exchange, otherwise
        )


_HINT = re.compile(r"^conduit row (\d+)$")
_LOOP = """
    #variable_conflict use_column
    DECLARE conduit_row record; conduit_detail text; conduit_count bigint := 0;
        conduit_to bigint; conduit_done bigint := 0;
    BEGIN
        FOR conduit_row IN SELECT {order} AS n, {operation} AS mark FROM {merge} ORDER BY 1 LOOP
            conduit_count := conduit_count + 1;
            CONTINUE WHEN conduit_row.n <= conduit_done;
            {branches}
        END LOOP;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS conduit_detail = PG_EXCEPTION_DETAIL;
        RAISE EXCEPTION USING ERRCODE = SQLSTATE, MESSAGE = SQLERRM, DETAIL = conduit_detail,
            HINT = 'conduit row ' || conduit_count;
    END
"""
_ROW = "m.{order} = conduit_row.n"
_NEW = "INSERT INTO {target} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {merge} m WHERE " + _ROW
_UPDATE = "UPDATE {target} t SET {changes} FROM {merge} m WHERE " + _ROW + " AND {same};"
_FIND = "PERFORM 1 FROM {target} t, {merge} m WHERE " + _ROW + " AND {same};"
_UNLESS_FOUND = " IF NOT FOUND THEN "
_REFUSE = f"RAISE EXCEPTION USING ERRCODE = '{NO_ROW}', MESSAGE = {{no_row}}; END IF;"
_MAKE_ROOM = (
    "DELETE FROM {target} t USING {merge} m WHERE " + _ROW + " AND {same} AND NOT ({stays})"
    " AND EXISTS (SELECT FROM {target} t WHERE {was});"
)
_MOVE = "UPDATE {target} t SET {values} FROM {merge} m WHERE " + _ROW + " AND {was};"
_ONE: Final = {
    "created": _NEW + ";",
    # ON CONFLICT alone does not see the rows of children by INHERITS
    "ignored": _NEW + " AND NOT EXISTS (SELECT FROM {target} t WHERE {same}) ON CONFLICT ({key}) DO NOTHING;",
    # the update comes first: it needs only the changed columns
    "updated": _UPDATE + _UNLESS_FOUND + _NEW + " ON CONFLICT ({key}) DO {action}; END IF;",
    "partial": _UPDATE + _UNLESS_FOUND + _REFUSE,
    "found": _FIND + _UNLESS_FOUND + _REFUSE,
    "deleted": "DELETE FROM {target} t USING {merge} m WHERE " + _ROW + " AND {same};",
}


def apply_in_order(
    connection: Connection, batch: CopyBatch, shapes: Sequence[MarkedColumns], on_conflict: OnConflict
) -> None:
    """Apply the rows of the temporary table. Raises ``RowError`` for the first row that the database refuses."""
    statements = MergeStatements(batch.group)
    connection.execute(statements.filled("CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {merge} ({order})"))
    exchange = _KeyExchange(connection, batch.group)

    def branch(shape: MarkedColumns) -> sql.Composed:
        found = statements.filled(_text(shape, batch.group.key, on_conflict), shape.columns)
        return exchange.before(statements, shape, found) if shape.change in MOVES else found

    branches = _chosen([(shape.mark, branch(shape)) for shape in sorted(shapes)])
    text = statements.filled(_LOOP, branches=branches).as_string(connection)
    try:
        connection.execute(sql.SQL("DO LANGUAGE plpgsql {}").format(sql.Literal(text)))
    except psycopg.Error as error:
        found = _HINT.match(error.diag.message_hint or "")
        if found is None or not is_data(error):
            raise
        raise RowError(batch.place(int(found[1])), error) from error


_FEW_BRANCHES = 8


def _chosen(branches: Sequence[tuple[str, sql.Composed]]) -> sql.Composed:
    """Return the choice of a branch by the row's mark. ``branches``: sorted by their marks.

    A CASE alone tries one branch after the other: with hundreds of them, for rows that each have other columns, that
    takes nearly all of the loop's time.
    """
    if len(branches) <= _FEW_BRANCHES:
        cases = [sql.SQL("WHEN {} THEN {}").format(sql.Literal(mark), text) for mark, text in branches]
        return sql.SQL("CASE conduit_row.mark {} END CASE;").format(sql.Composed(cases))
    half = len(branches) // 2
    choice = sql.SQL('IF conduit_row.mark < {} COLLATE "C" THEN {} ELSE {} END IF;')
    return choice.format(sql.Literal(branches[half][0]), _chosen(branches[:half]), _chosen(branches[half:]))


def _text(shape: MarkedColumns, key: tuple[str, ...], on_conflict: OnConflict) -> str:
    stays = _staying(shape, key, on_conflict)
    if shape.change not in MOVES:
        return stays
    room = _MAKE_ROOM if on_conflict == "update" else ""
    return room + _MOVE + _UNLESS_FOUND + stays + " END IF;"


def _staying(shape: MarkedColumns, key: tuple[str, ...], on_conflict: OnConflict) -> str:
    """Return the statement for a change that keeps the key."""
    has_others = set(shape.columns) > set(key)
    if shape.change in PARTIAL:
        return _ONE["partial" if has_others else "found"]
    if shape.change == "d":
        return _ONE["deleted"]
    if shape.change == "c":
        return _ONE["ignored" if on_conflict == "ignore" else "created"]
    return _ONE["updated" if has_others else "ignored"]
