"""Merge of changes by key through a temporary table: set-based where the effect is the same, else row by row inside the
database.
"""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import sql

from conduit_dagster.connectors.postgres.connection import Connection, value_of
from conduit_dagster.connectors.postgres.merge_statements import (
    MarkedColumns,
    MergeStatements,
    OnConflict,
    apply_in_order,
)
from conduit_dagster.connectors.postgres.sqlstates import is_data
from conduit_dagster.connectors.postgres.staged_rows import MOVES
from conduit_dagster.connectors.postgres.table_changes import Command, refuse_hidden_rows
from conduit_dagster.connectors.postgres.table_plan import CopyBatch

_LOOK = """
    SELECT to_regclass({merge_text}) IS NOT NULL, ARRAY(
        SELECT a.attname::text FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = to_regclass({target_text}) AND t.typtype = 'd'),
        EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent
                WHERE c.oid = to_regclass({target_text}) AND c.relkind <> 'p'),
        row_security_active(to_regclass({target_text}))
"""
_EMPTY = "TRUNCATE {merge}, {last}"
_TEMPORARY = """
    CREATE TEMPORARY TABLE {merge} ON COMMIT DROP AS
    SELECT ''::text AS {operation}, {staged} FROM {target} LIMIT 0
"""
_NUMBERED = "ALTER TABLE {merge} ADD COLUMN {order} bigint GENERATED ALWAYS AS IDENTITY"
_MARKED = "ALTER TABLE {merge} ALTER {operation} SET DEFAULT {mark}"
_MARKS = "SELECT DISTINCT {operation} FROM {merge} ORDER BY 1"
_HISTORY = """
    SELECT * FROM (
        SELECT *, left({operation}, 1) AS "conduit last",
            first_value(left({operation}, 1)) OVER w AS "conduit first",
            bool_or(left({operation}, 1) = 'd') OVER (PARTITION BY {key}) AS "conduit deleted",
            lead({order}) OVER w IS NULL AS "conduit is last",
            left({operation}, 1) = 'c' AND lag(left({operation}, 1)) OVER w IN ('c', 'u', 'p')
                OR left({operation}, 1) = 'p' AND lag(left({operation}, 1)) OVER w = 'd' AS "conduit doubtful"
        FROM {merge} WHERE NOT {moved} WINDOW w AS (PARTITION BY {key} ORDER BY {order})
    ) history WHERE "conduit is last" OR "conduit doubtful"
"""
_LAST = "CREATE TEMPORARY TABLE {last} ON COMMIT DROP AS" + _HISTORY + "WITH NO DATA"
_FIND_LAST = "INSERT INTO {last}" + _HISTORY
_IS_REPEATED = "SELECT EXISTS (SELECT FROM {merge} WHERE NOT {moved} GROUP BY {key} HAVING count(*) > 1)"
_DOUBTFUL = """
    SELECT EXISTS (SELECT FROM {rows} m WHERE "conduit doubtful")
        OR EXISTS (SELECT FROM {rows} m JOIN {target} t ON {same} WHERE m."conduit first" = 'c')
        OR EXISTS (SELECT FROM {rows} m WHERE m."conduit first" = 'p'
                   AND NOT EXISTS (SELECT FROM {target} t WHERE {same}))
"""
_DELETE = 'DELETE FROM {target} t USING {rows} m WHERE {same} AND m."conduit is last" AND m."conduit deleted"'
_INSERT = """
    INSERT INTO {target} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {rows} m
    WHERE "conduit is last" AND "conduit last" <> 'd' AND ("conduit deleted" OR "conduit first" = 'c') {in_order}
"""
_FIRST = """
    INSERT INTO {target} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {merge} ORDER BY {order}
    ON CONFLICT ({key}) DO NOTHING
"""
_UPSERT = """
    INSERT INTO {target} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {rows} m
    WHERE "conduit is last" AND "conduit last" <> 'd' AND NOT "conduit deleted" AND "conduit first" = 'u'
    {in_order} ON CONFLICT ({key}) DO {action}
"""
_UPDATE = """
    UPDATE {target} t SET {changes} FROM {rows} m
    WHERE {same} AND m."conduit is last" AND m."conduit last" <> 'd' AND NOT m."conduit deleted"
        AND m."conduit first" = 'p'
"""
_ENTANGLED = """
    SELECT EXISTS (
            SELECT FROM (
                SELECT {key}, {moved} AS "conduit moved" FROM {merge}
                UNION ALL SELECT {old}, true FROM {merge} WHERE {moved}
            ) touched GROUP BY {key} HAVING count(*) > 1 AND bool_or("conduit moved"))
        OR EXISTS (SELECT FROM {merge} m WHERE {moved} AND NOT EXISTS (SELECT FROM {target} t WHERE {was}))
"""
_MAKE_ROOM = "DELETE FROM {target} t USING {merge} m WHERE {moved} AND {same}"
_MOVE = "UPDATE {target} t SET {values} FROM {merge} m WHERE {moved} AND {was}"

_COMMANDS: Final[dict[str, Command]] = {"c": "r", "u": "w", "p": "w", "m": "w", "q": "w", "d": "d"}
"""What a change of a row that is there needs a policy for."""


class Merge:
    """Merge of one batch, within the transaction of its delivery."""

    def __init__(self, connection: Connection, batch: CopyBatch, on_conflict: OnConflict) -> None:
        self._connection = connection
        self._batch = batch
        self._on_conflict: OnConflict = on_conflict
        self._sql = MergeStatements(batch.group)
        self._has_children = self._is_secured = False

    def prepare(self) -> sql.Composed:
        """Create or empty the temporary tables, and return the COPY statement that fills the first one.

        Batches with the same columns share the tables: new ones for each batch would hold too many locks in one
        transaction.
        """
        row = self._connection.execute(self._sql.filled(_LOOK)).fetchone()
        assert row is not None
        is_there, domains, self._has_children, self._is_secured = row
        if is_there:
            self._execute(_EMPTY)
        else:
            self._connection.execute(self._sql.filled(_TEMPORARY, staged=self._sql.staged(domains)))
            self._execute(_NUMBERED)
            self._execute(_LAST)
        if self._batch.group.mark:
            self._execute(_MARKED)
            return self._sql.filled("COPY {merge} ({columns}) FROM STDIN")
        return self._sql.filled("COPY {merge} ({operation}, {columns}{old_names}) FROM STDIN")

    @property
    def relation(self) -> str:
        """Name of the temporary table, as it appears in COPY errors."""
        return self._sql.name

    def apply(self) -> None:
        """Apply the rows. Raises ``RowError`` for the first row that the database refuses."""
        marks = [row[0] for row in self._connection.execute(self._sql.filled(_MARKS))]
        shapes = [MarkedColumns(mark, self._columns_of(mark)) for mark in marks]
        changes = {shape.change for shape in shapes}
        if self._is_secured:
            refuse_hidden_rows(self._connection, [self._batch.group.table], {"r", *(_COMMANDS[one] for one in changes)})
        written = {shape.columns for shape in shapes if shape.change != "d"}
        if len(written) <= 1 and self._as_set(next(iter(written), ()), changes):
            return
        apply_in_order(self._connection, self._batch, shapes, self._on_conflict)

    def _columns_of(self, mark: str) -> tuple[str, ...]:
        bits = int(mark[1:], 16)
        return tuple(name for place, name in enumerate(self._batch.group.columns) if bits >> place & 1)

    def _as_set(self, columns: tuple[str, ...], changes: set[str]) -> bool:
        """Apply the last change of each key; return False, with nothing done, if the row-by-row result could differ."""
        try:
            with self._connection.transaction() as savepoint:
                if self._is_applied(columns, changes):
                    return True
                # some may be: a moved row is no longer there to be moved row by row
                raise psycopg.Rollback(savepoint)
        except psycopg.Error as error:
            # applying row by row finds the row at fault, if any
            if not is_data(error):
                raise
        return False

    def _is_applied(self, columns: tuple[str, ...], changes: set[str]) -> bool:
        if self._has_children and changes & {"c", "u"}:
            # ON CONFLICT does not see the rows of children by INHERITS; the loop looks for the row first
            return False
        if self._on_conflict == "ignore" and "c" in changes:
            return changes == {"c"} and self._first_wins(columns)
        if changes & MOVES and not self._moved(columns):
            return False
        return self._last_wins(columns, changes - MOVES)

    def _first_wins(self, columns: tuple[str, ...]) -> bool:
        self._execute(_FIRST, columns)
        return True

    def _moved(self, columns: tuple[str, ...]) -> bool:
        """Apply the changes of keys. Return False, with nothing done, if another change of the batch touches one of
        these keys or a row does not exist; else the order of these changes and all others does not matter."""
        if self._is_true(_ENTANGLED):
            return False
        if self._on_conflict == "update":
            self._execute(_MAKE_ROOM)
        self._execute(_MOVE, columns)
        return True

    def _last_wins(self, columns: tuple[str, ...], changes: set[str]) -> bool:
        if not changes:
            return True
        if self._is_true(_IS_REPEATED):
            self._execute(_FIND_LAST)
        else:
            self._sql.read_all()
        if changes & {"c", "p"} and self._is_true(_DOUBTFUL):
            return False
        if "d" in changes:
            self._execute(_DELETE)
        if changes & {"c", "d"} and changes != {"d"}:
            self._execute(_INSERT, columns)
        # only this statement needs a unique index
        if "u" in changes:
            self._execute(_UPSERT, columns)
        if "p" in changes and set(columns) > set(self._batch.group.key):
            self._execute(_UPDATE, columns)
        return True

    def _execute(self, text: str, columns: tuple[str, ...] = ()) -> None:
        self._connection.execute(self._sql.filled(text, columns))

    def _is_true(self, text: str) -> bool:
        return bool(value_of(self._connection, self._sql.filled(text)))
