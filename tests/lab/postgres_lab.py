"""A separate database, a postgres destination on it, and deliveries without an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from conduit_dagster.connectors.postgres.catalog import TABLES
from conduit_dagster.connectors.postgres.destination import PostgresDestination
from conduit_dagster.connectors.postgres.settings import PostgresDestinationSettings
from conduit_dagster.expressions import Clock
from conduit_dagster.record import Record
from conduit_dagster.sdk import ConnectorContext, Delivery, Refusal, WriterTask
from lab.kills import at


class PostgresLab:
    """Deliveries are numbered by step; the hash is the step's number."""

    def __init__(self, url: str, root: Path) -> None:
        self.url = url
        self.root = root
        self.steps = 0
        self.refused: list[Refusal] = []

    def reset(self) -> None:
        """Empty the database, and clear this process's caches of it."""
        TABLES._known.clear()
        own = "nspname !~ '^pg_' AND nspname <> 'information_schema'"
        for (name,) in self.execute(f"SELECT nspname FROM pg_namespace WHERE {own}"):
            self.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)).as_string(None))
        self.execute("CREATE SCHEMA public")

    def destination(self, pipeline: str = "p", **settings: str) -> PostgresDestination:
        """Return a destination that writes to the table t by default; names of settings with underscores."""
        given = {key.replace("_", "-"): value for key, value in settings.items()}
        values = PostgresDestinationSettings.model_validate({"url": self.url, "table": "t", **given})
        return PostgresDestination(values, ConnectorContext(pipeline, "out", str(self.root), Clock()))

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement on its own connection."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def rows(self, table: str = "t", order: str = "1") -> list[tuple[Any, ...]]:
        """Return all rows of a table."""
        name = sql.Identifier(*table.split("/")).as_string(None)
        return self.execute(f"SELECT * FROM {name} ORDER BY {order}")

    def states(self) -> list[str]:
        """Return the states in conduit_deliveries, in the order of hashes."""
        return [row[0] for row in self.execute("SELECT state FROM conduit_deliveries ORDER BY hash")]

    def stage(self, destination: PostgresDestination, *tasks: Sequence[Record], block: int = 1_000) -> Delivery:
        """Return a delivery with a part per task; refused records are kept in ``refused``, with their places in the
        task."""
        self.steps += 1
        step, parts = self.steps, []
        staging = str(self.root / f"staging/{step}")
        for index, records in enumerate(tasks):
            writer = destination.writer(WriterTask(staging, index, f"t{index}"))
            for start in range(0, len(records), block):
                refused = writer.write(list(records[start : start + block]))
                self.refused += [one._replace(place=start + one.place) for one in refused]
            part = writer.finish()
            parts += [part] if part else []
        return Delivery(f"{step:064x}", step, "out", staging, tuple(parts), {})

    def deliver(self, destination: PostgresDestination, *tasks: Sequence[Record]) -> Delivery:
        """Stage and publish."""
        delivery = self.stage(destination, *tasks)
        destination.publish(delivery)
        return delivery


def child(delivery: Delivery, skip: int, take: int = 1) -> Delivery:
    """Return a range of a delivery's records under its own hash."""
    return replace(delivery, hash=f"{delivery.hash}:{skip}:{take}", skip=skip, take=take)


def create(number: int, **fields: Any) -> Record:
    """Return a new row with the id ``number``."""
    return Record(number, {}, {"id": number, **fields})


def change(operation: str, number: int, **fields: Any) -> Record:
    """Return an operation on the row with the id ``number``."""
    after = None if operation == "delete" else {"id": number, **fields}
    return Record(number, {}, after, {"id": number}, operation=operation)


def at_half(action: Callable[[], object]) -> AbstractContextManager[None]:
    """Run ``action()`` once, when half of a delivery's rows are sent."""
    return at("mid-publish", action)
