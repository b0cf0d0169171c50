"""Application of rows by key through a temporary table: as a set where the effect is the same, else row by row inside
the database.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from conduit_dagster.connectors.postgres.connection import Connection
from conduit_dagster.connectors.postgres.sqlstates import RowError, is_data
from conduit_dagster.connectors.postgres.staged_rows import LineGroup
from conduit_dagster.connectors.postgres.table_plan import CopyBatch

MERGE = "conduit_merge"
_ORDER = sql.Identifier("conduit order")
_OPERATION = sql.Identifier("conduit operation")
_HINT = re.compile(r"^conduit row (\d+)$")

_TEMPORARY = """
    CREATE TEMPORARY TABLE pg_temp.{merge} ON COMMIT DROP AS
    SELECT ''::text AS {operation}, {columns} FROM {target} LIMIT 0
"""
_NUMBERED = "ALTER TABLE pg_temp.{merge} ADD COLUMN {order} bigint GENERATED ALWAYS AS IDENTITY"
_HISTORY = """
    CREATE TEMPORARY TABLE pg_temp.conduit_last ON COMMIT DROP AS
    SELECT * FROM (
        SELECT *, left({operation}, 1) AS "conduit last",
            first_value(left({operation}, 1)) OVER w AS "conduit first",
            bool_or(left({operation}, 1) = 'd') OVER (PARTITION BY {key}) AS "conduit deleted",
            lead({order}) OVER w IS NULL AS "conduit is last",
            left({operation}, 1) = 'c' AND lag(left({operation}, 1)) OVER w IN ('c', 'u') AS "conduit twice"
        FROM pg_temp.{merge} WINDOW w AS (PARTITION BY {key} ORDER BY {order})
    ) history WHERE "conduit is last" OR "conduit twice"
"""
_DOUBTFUL = """
    SELECT EXISTS (SELECT FROM pg_temp.conduit_last WHERE "conduit twice")
        OR EXISTS (SELECT FROM pg_temp.conduit_last m JOIN {target} t ON {same} WHERE m."conduit first" = 'c')
"""
_DELETE = (
    'DELETE FROM {target} t USING pg_temp.conduit_last m WHERE {same} AND m."conduit is last" AND m."conduit deleted"'
)
_INSERT = """
    INSERT INTO {target} ({columns}) SELECT {columns} FROM pg_temp.conduit_last
    WHERE "conduit is last" AND "conduit last" <> 'd' AND ("conduit deleted" OR "conduit first" = 'c') ORDER BY {order}
"""
_FIRST = """
    INSERT INTO {target} ({columns}) SELECT {columns} FROM pg_temp.{merge} ORDER BY {order}
    ON CONFLICT ({key}) DO NOTHING
"""
_UPSERT = """
    INSERT INTO {target} ({columns}) SELECT {columns} FROM pg_temp.conduit_last
    WHERE "conduit is last" AND "conduit last" = 'u' AND NOT "conduit deleted" AND "conduit first" <> 'c'
    ORDER BY {order} ON CONFLICT ({key}) DO {action}
"""

OnConflict = Literal["error", "update", "ignore"]


class _Shape(NamedTuple):
    mark: str
    """Mark as staged: the operation, and in hex the set of columns."""
    columns: tuple[str, ...]


class Merge:
    """One batch of rows with operations, in one transaction."""

    def __init__(self, connection: Connection, batch: CopyBatch, on_conflict: OnConflict) -> None:
        self._connection = connection
        self._batch = batch
        self._group: LineGroup = batch.group
        self._on_conflict: OnConflict = on_conflict

    def prepare(self) -> sql.Composed:
        """Create the temporary table and return the COPY statement that fills it."""
        self._connection.execute(sql.SQL("DROP TABLE IF EXISTS pg_temp.{}, pg_temp.conduit_last").format(_merge()))
        self._execute(_TEMPORARY)
        self._execute(_NUMBERED)
        names = sql.SQL(", ").join([_OPERATION, *map(sql.Identifier, self._group.columns)])
        return sql.SQL("COPY pg_temp.{} ({}) FROM STDIN").format(_merge(), names)

    def apply(self) -> None:
        """Apply the rows. Raises :class:`RowError` for the first row that the database refuses."""
        marks = [row[0] for row in self._query("SELECT DISTINCT {operation} FROM pg_temp.{merge} ORDER BY 1")]
        shapes = [_Shape(mark, self._columns_of(mark)) for mark in marks]
        written = {shape.columns for shape in shapes if shape.mark[0] != "d"}
        if len(written) <= 1 and self._as_set(next(iter(written), ()), {mark[0] for mark in marks}):
            return
        self._row_by_row(shapes)

    def _columns_of(self, mark: str) -> tuple[str, ...]:
        bits = int(mark[1:], 16)
        return tuple(name for place, name in enumerate(self._group.columns) if bits >> place & 1)

    # -- as a set -----------------------------------------------------------------------------------------------

    def _as_set(self, columns: tuple[str, ...], operations: set[str]) -> bool:
        """Apply the last row of each key; return False, with nothing done, if row by row could differ."""
        try:
            with self._connection.transaction():
                if self._on_conflict == "ignore" and "c" in operations:
                    return operations == {"c"} and self._first_wins(columns)
                return self._last_wins(columns, operations)
        except psycopg.Error as error:
            # row by row shows which row is at fault, if any
            if not is_data(error):
                raise
            return False

    def _first_wins(self, columns: tuple[str, ...]) -> bool:
        self._execute(_FIRST, columns)
        return True

    def _last_wins(self, columns: tuple[str, ...], operations: set[str]) -> bool:
        self._execute(_HISTORY)
        if "c" in operations and self._query(_DOUBTFUL)[0][0]:
            return False
        if "d" in operations:
            self._execute(_DELETE)
        if operations != {"d"}:
            self._execute(_INSERT, columns)
        # only this statement needs a unique index
        if "u" in operations:
            self._execute(_UPSERT, columns)
        return True

    # -- row by row ---------------------------------------------------------------------------------------------

    def _row_by_row(self, shapes: list[_Shape]) -> None:
        self._execute("CREATE UNIQUE INDEX ON pg_temp.{merge} ({order})")
        branches = sql.SQL("").join(self._branch(shape) for shape in shapes)
        body = sql.SQL(_LOOP).format(order=_ORDER, operation=_OPERATION, merge=_merge(), branches=branches)
        text = body.as_string(self._connection)
        try:
            self._connection.execute(sql.SQL("DO LANGUAGE plpgsql {}").format(sql.Literal(text)))
        except psycopg.Error as error:
            found = _HINT.match(error.diag.message_hint or "")
            if found is None or not is_data(error):
                raise
            raise RowError(self._batch.place(int(found[1])), error) from error

    def _branch(self, shape: _Shape) -> sql.Composed:
        statement = self._filled(_ONE[self._kind(shape)], shape.columns)
        return sql.SQL("WHEN {} THEN {}").format(sql.Literal(shape.mark), statement)

    def _kind(self, shape: _Shape) -> str:
        if shape.mark[0] == "c" and self._on_conflict == "ignore":
            return "ignored"
        if shape.mark[0] == "u" and set(shape.columns) == set(self._group.key):
            return "ignored"
        return {"c": "created", "u": "updated", "d": "deleted"}[shape.mark[0]]

    # -- statements ---------------------------------------------------------------------------------------------

    def _execute(self, text: str, columns: tuple[str, ...] | None = None) -> None:
        self._connection.execute(self._filled(text, columns or self._group.columns))

    def _query(self, text: str) -> list[TupleRow]:
        return self._connection.execute(self._filled(text, self._group.columns)).fetchall()

    def _filled(self, text: str, columns: tuple[str, ...]) -> sql.Composed:
        key = self._group.key
        others = [name for name in columns if name not in key]
        changes = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others)
        return sql.SQL(text).format(  # pyright: ignore[reportArgumentType]  # all texts are in this file
            merge=_merge(),
            target=self._group.table.quoted,
            order=_ORDER,
            operation=_OPERATION,
            columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
            key=sql.SQL(", ").join(map(sql.Identifier, key)),
            same=sql.SQL(" AND ").join(sql.SQL("t.{0} = m.{0}").format(sql.Identifier(name)) for name in key),
            action=sql.SQL("UPDATE SET {}").format(changes) if others else sql.SQL("NOTHING"),
            changes=sql.SQL(", ").join(sql.SQL("{0} = m.{0}").format(sql.Identifier(name)) for name in others),
        )


_NEW = "INSERT INTO {target} ({columns}) SELECT {columns} FROM pg_temp.{merge} m WHERE m.{order} = conduit_row.n"
_LOOP = """
    #variable_conflict use_column
    DECLARE conduit_row record; conduit_detail text;
    BEGIN
        FOR conduit_row IN SELECT {order} AS n, {operation} AS mark FROM pg_temp.{merge} ORDER BY 1 LOOP
            CASE conduit_row.mark {branches} END CASE;
        END LOOP;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS conduit_detail = PG_EXCEPTION_DETAIL;
        RAISE EXCEPTION USING ERRCODE = SQLSTATE, MESSAGE = SQLERRM, DETAIL = conduit_detail,
            HINT = 'conduit row ' || conduit_row.n;
    END
"""
_ONE = {
    "created": _NEW + ";",
    "ignored": _NEW + " ON CONFLICT ({key}) DO NOTHING;",
    # the update first: it needs only the columns that it changes
    "updated": "UPDATE {target} t SET {changes} FROM pg_temp.{merge} m WHERE m.{order} = conduit_row.n AND {same};"
    " IF NOT FOUND THEN " + _NEW + " ON CONFLICT ({key}) DO {action}; END IF;",
    "deleted": "DELETE FROM {target} t USING pg_temp.{merge} m WHERE m.{order} = conduit_row.n AND {same};",
}


def _merge() -> sql.Identifier:
    return sql.Identifier(MERGE)
