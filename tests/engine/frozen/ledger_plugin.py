"""A staged destination for the project's ``plugins/``: a table of hashes in SQLite, as PostgreSQL keeps one.

``ROOT/orders.json`` scripts it: lists of record numbers under ``reject`` (refused, and the first is named), ``named``
(refused, and all are named), ``bulk`` (fails and names nothing), ``outage`` (the connection is lost), ``late`` (it is
written, and the answer is lost). ``ROOT/asked.jsonl`` has the records of each attempt to publish.
"""

from __future__ import annotations

from typing import Any

TEXT = '''
import json
import sqlite3
from contextlib import closing
from pathlib import Path

from conduit_dagster.sdk import AlreadyClaimed, ConnectorSettings, Refusal, Rejected, StagedDestination
from conduit_dagster.sdk import RecordWriter, staged_records
from conduit_dagster.record import Nack
from conduit_dagster.recovery.kill_points import reached

TABLES = """
    CREATE TABLE IF NOT EXISTS hashes (hash TEXT PRIMARY KEY, state TEXT);
    CREATE TABLE IF NOT EXISTS rows (i INTEGER);
"""


class LedgerSettings(ConnectorSettings):
    path: str


class Ledger(StagedDestination):
    """One transaction puts the hash and the rows, or neither."""

    name = "ledger"
    Settings = LedgerSettings
    strategies = frozenset({"exactly-once", "at-least-once", "at-most-once"})
    divisible = True
    skips_records = True
    changes_records = False

    def check(self):
        with closing(self._open()) as connection:
            connection.executescript(TABLES)

    def _open(self):
        return sqlite3.connect(self.context.resolve(self.settings.path), timeout=30, isolation_level=None)

    def writer(self, task):
        return RecordWriter(task)

    def _state(self, connection, delivery):
        row = connection.execute("SELECT state FROM hashes WHERE hash = ?", (delivery.hash,)).fetchone()
        return row and row[0]

    def holds(self, delivery):
        with closing(self._open()) as connection:
            return self._state(connection, delivery) == "delivered"

    def claim(self, delivery, state):
        return self.claim_all([delivery], state)[0]

    def claim_all(self, deliveries, state):
        with closing(self._open()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            for delivery in deliveries:
                connection.execute("INSERT OR IGNORE INTO hashes VALUES (?, ?)", (delivery.hash, state))
            connection.execute("COMMIT")
            return [self._state(connection, delivery) for delivery in deliveries]

    def publish(self, delivery):
        rows = [staged.record.after["i"] for staged in staged_records(delivery)]
        orders = self._orders()
        with Path(self.context.resolve("asked.jsonl")).open("a") as asked:
            asked.write(json.dumps(rows) + "\\n")
        reached("mid-publish", self.context.pipeline)
        with closing(self._open()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._put(connection, delivery, rows, orders)
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
        if set(rows) & set(orders.get("late", ())):
            raise RuntimeError("the answer was lost")
        return delivery.target

    def _put(self, connection, delivery, rows, orders):
        state = self._state(connection, delivery)
        if state == "delivered":
            return
        if state is not None:
            raise AlreadyClaimed(state)
        connection.execute("INSERT INTO hashes VALUES (?, 'delivered')", (delivery.hash,))
        if set(rows) & set(orders.get("outage", ())):
            raise OSError("the connection was lost")
        if set(rows) & set(orders.get("bulk", ())):
            raise RuntimeError("something is wrong")
        named = set(orders.get("named", ()))
        refused = [Refusal(place, Nack("ledger.no", f"no {row}")) for place, row in enumerate(rows) if row in named]
        if refused:
            raise Rejected(*refused[0], more=refused[1:])
        for place, row in enumerate(rows):
            if row in orders.get("reject", ()):
                raise Rejected(place, Nack("ledger.no", f"no {row}"))
        connection.executemany("INSERT INTO rows VALUES (?)", [(row,) for row in rows])

    def _orders(self):
        file = Path(self.context.resolve("orders.json"))
        return json.loads(file.read_text()) if file.exists() else {}
'''


def ledger(name: str = "out") -> dict[str, Any]:
    """A ledger destination in ``ROOT/NAME.ledger``."""
    return {"id": name, "type": "destination", "plugin": "ledger", "settings": {"path": f"./{name}.ledger"}}
