"""Key exchanges: consecutive updates of keys, each of which needs a key that a later one of them frees.

A source statement on a table with a deferrable key produces such changes. They are applied together: one statement
deletes all of these rows, then inserts them with their new keys.
"""

from __future__ import annotations

from typing import Final

from psycopg import sql

from conduit_dagster.connectors.postgres.catalog import read_table
from conduit_dagster.connectors.postgres.connection import Connection, value_of
from conduit_dagster.connectors.postgres.merge_statements import MarkedColumns, MergeStatements
from conduit_dagster.connectors.postgres.staged_rows import LineGroup

_MOST: Final = 1_000
"""Maximum number of rows of one exchange: each additional row is checked together with all before it."""
_ACTIONS = """
    SELECT EXISTS (
        SELECT FROM pg_constraint c JOIN pg_class r ON r.oid = c.confrelid JOIN pg_namespace n ON n.oid = r.relnamespace
        WHERE c.contype = 'f' AND n.nspname = %s AND r.relname = %s AND (c.confdeltype <> 'a' OR c.confupdtype <> 'a'))
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


class KeyExchange:
    """Branch of the merge loop that applies key exchanges."""

    def __init__(self, connection: Connection, group: LineGroup) -> None:
        self._key = group.key
        table = read_table(connection, group.table) if group.moves else None
        # not with referential actions: a deletion would cascade to the referencing rows
        if table is None or value_of(connection, _ACTIONS, (group.table.schema, group.table.name)):
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
