"""The PostgreSQL of the benchmarks: the tests' server, with a typical server's memory."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import psycopg
from psycopg import sql

from benchmarks.data import COLUMNS
from tests.lab.postgres_server import PostgresServer, installations

_LARGER = ("shared_buffers=256MB", "max_wal_size=4GB")


class _Server(PostgresServer):
    def _open(self, command: list[str]) -> subprocess.Popen[bytes]:
        is_server = command[0].endswith("/postgres")
        # if an option is given twice, the last one counts
        more = [part for setting in _LARGER for part in ("-c", setting)] if is_server else []
        return super()._open([*command, *more])


class Database:
    """A database on its own server; call ``close`` at the end."""

    def __init__(self) -> None:
        found = installations()
        if not found:
            raise RuntimeError("no PostgreSQL: install Debian's postgresql, or pgserver (Python 3.12 or older)")
        self._server = _Server(found[0])
        self.url = self._server.create_database()

    @property
    def version(self) -> str:
        """The version reported by the server."""
        with psycopg.connect(self.url) as connection:
            return str(connection.execute("SHOW server_version").fetchone()[0])  # pyright: ignore[reportOptionalSubscript]

    def clear(self, tables: Sequence[str]) -> None:
        """Empty the tables, remove delivery hashes, and flush pending writes."""
        columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in COLUMNS.items()
        )
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS conduit_deliveries")
            for name in map(sql.Identifier, tables):
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(name))
                create = sql.SQL("CREATE TABLE {} ({}) WITH (autovacuum_enabled = false)")
                connection.execute(create.format(name, columns))
            connection.execute("CHECKPOINT")

    def count(self, table: str) -> int:
        """Return the number of rows in a table."""
        with psycopg.connect(self.url) as connection:
            row = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchone()
        return 0 if row is None else int(row[0])

    def close(self) -> None:
        """Stop the server and remove its data."""
        self._server.close()
