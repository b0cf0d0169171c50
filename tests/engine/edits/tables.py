"""PostgreSQL tables that pipelines of these tests write to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from lab.postgres_server import PostgresServer


@dataclass(frozen=True)
class Table:
    """The table ``t`` of a database of its own. Without a unique key: a duplicate shows."""

    url: str

    @classmethod
    def create(cls, server: PostgresServer, columns: str) -> Table:
        """A new, empty one."""
        table = cls(server.create_database())
        with psycopg.connect(table.url) as connection:
            connection.execute(f"CREATE TABLE t ({columns})".encode())
        return table

    def destination(self, name: str = "out", **settings: str) -> dict[str, Any]:
        """A connector that writes to it."""
        given = {"url": self.url, "table": "t", **settings}
        return {"id": name, "type": "destination", "plugin": "builtin:postgres", "settings": given}

    def values(self, column: str = "id") -> list[Any]:
        """A column, in the order in which its rows were written."""
        with psycopg.connect(self.url) as connection:
            # rows are only ever inserted, by one transaction after another, into a heap without free space
            return [row[0] for row in connection.execute(f"SELECT {column} FROM t ORDER BY ctid".encode())]


MakeTable = Callable[[str], Table]
