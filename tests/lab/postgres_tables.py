"""PostgreSQL source tables for engine tests, each with its own slot and publication."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

WINDOW = "16KB"
"""``delivery.batch-bytes`` for steps of exactly one group of :func:`make_table`."""
_GAP = 70_000
"""Bytes of WAL between two groups: more than a step reads, which is four times its limit."""


def make_table(database: str, name: str, numbers: Sequence[int], group: int = 0) -> None:
    """Create a table of numbers. With ``group``, create its slot first and insert that many rows per transaction."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f'CREATE TABLE "{name}" (i bigint PRIMARY KEY)'.encode())
        if group:
            connection.execute(f'CREATE PUBLICATION "{name}" FOR TABLE "{name}"'.encode())
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (_slot(database, name),))
        size = group or len(numbers)
        for start in range(0, len(numbers), size):
            rows = list(numbers[start : start + size])
            connection.execute(f'INSERT INTO "{name}" SELECT unnest(%s)'.encode(), (rows,))
            connection.execute("SELECT pg_logical_emit_message(false, 'gap', repeat('x', %s))", (_GAP,))


def table_settings(database: str, name: str) -> dict[str, str]:
    """Return the settings of a source of the table."""
    return {
        "url": database,
        "tables": name,
        "logrepl.slotName": _slot(database, name),
        "logrepl.publicationName": name,
    }


def _slot(database: str, name: str) -> str:
    # slot names are unique per server, not per database
    return f"{database.rpartition('/')[2]}_{name}".lower()


def drop_slots(database: str, name: str = "") -> None:
    """Drop a database's slots, or the one with this name, and end their readers: a server has few slots."""
    mine = "FROM pg_replication_slots WHERE database = current_database() AND %s::text IN ('', slot_name::text)"
    names = (name,)
    with psycopg.connect(database, autocommit=True) as connection:
        # the server takes a moment to end a reader
        while connection.execute(f"SELECT pg_terminate_backend(active_pid) {mine} AND active", names).fetchone():
            pass
        connection.execute(f"SELECT pg_drop_replication_slot(slot_name) {mine}", names)
