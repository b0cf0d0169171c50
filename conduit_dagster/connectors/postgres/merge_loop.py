"""Row-by-row merge inside the database (PL/pgSQL), which identifies the refused row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg import sql

from conduit_dagster.connectors.postgres.connection import Connection
from conduit_dagster.connectors.postgres.exchanged_keys import KeyExchange
from conduit_dagster.connectors.postgres.keyed_rows import MOVES, PARTIAL
from conduit_dagster.connectors.postgres.merge_statements import MarkedColumns, MergeStatements, OnConflict
from conduit_dagster.connectors.postgres.sqlstates import NO_ROW, RowError, is_data
from conduit_dagster.connectors.postgres.table_plan import CopyBatch

_HINT = re.compile(r"^conduit row (\d+)$")
_LOOP = """
    #variable_conflict use_column
    DECLARE conduit_row record; conduit_detail text; conduit_count bigint := 0;
        conduit_to bigint; conduit_done bigint := 0;
    BEGIN
        FOR conduit_row IN SELECT {order} AS n, {operation} AS mark FROM {merge} ORDER BY 1 LOOP
            conduit_count := conduit_count + 1;
            CONTINUE WHEN conduit_row.n <= conduit_done;
            CASE conduit_row.mark {branches} END CASE;
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
    "ignored": _NEW + " ON CONFLICT ({key}) DO NOTHING;",
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
    exchange = KeyExchange(connection, batch.group)

    def branch(shape: MarkedColumns) -> sql.Composed:
        found = statements.filled(_text(shape, batch.group.key, on_conflict), shape.columns)
        found = exchange.before(statements, shape, found) if shape.change in MOVES else found
        return sql.SQL("WHEN {} THEN {}").format(sql.Literal(shape.mark), found)

    text = statements.filled(_LOOP, branches=sql.Composed(list(map(branch, shapes)))).as_string(connection)
    try:
        connection.execute(sql.SQL("DO LANGUAGE plpgsql {}").format(sql.Literal(text)))
    except psycopg.Error as error:
        found = _HINT.match(error.diag.message_hint or "")
        if found is None or not is_data(error):
            raise
        raise RowError(batch.place(int(found[1])), error) from error


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
