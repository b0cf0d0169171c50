"""The table ``conduit_deliveries``: which deliveries are in the database, which are split or nacked."""

from __future__ import annotations

from typing import NamedTuple, cast

import psycopg
from psycopg import errors, sql

from conduit_dagster.connectors.postgres.errors import Verdicts
from conduit_dagster.connectors.postgres.names import TableName
from conduit_dagster.connectors.postgres.session import Connection
from conduit_dagster.sdk import Claimed, Delivery

NAME = "conduit_deliveries"
KEPT_STEPS = 1_000
"""Hashes of so many steps are kept; an older delivery is refused, so that none is ever published again."""
_EVERY = 100

_CREATE = """
    CREATE TABLE IF NOT EXISTS {} (
        hash text PRIMARY KEY, state text NOT NULL, pipeline text NOT NULL, consumer text NOT NULL,
        step bigint NOT NULL, records bigint NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())
"""
_PUT = """
    INSERT INTO {} (hash, state, pipeline, consumer, step, records) VALUES (%s, %s, %s, %s, %s, %s)
    ON CONFLICT DO NOTHING RETURNING 1
"""
_RAISE_FLOOR = """
    INSERT INTO {0} AS d (hash, state, pipeline, consumer, step, records) VALUES (%s, 'pruned', %s, %s, %s, 0)
    ON CONFLICT (hash) DO UPDATE SET step = greatest(d.step, excluded.step), at = clock_timestamp()
"""
_PRUNE = "DELETE FROM {} WHERE pipeline = %s AND consumer = %s AND step < %s AND state <> 'pruned'"
_RIGHTS = """
    SELECT bool_and(has_table_privilege(%s, right_)) FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) right_
"""


class Claims(NamedTuple):
    """The deliveries of one pipeline in one schema."""

    schema: str
    pipeline: str
    verdicts: Verdicts

    @property
    def _table(self) -> sql.Identifier:
        return TableName(self.schema, NAME).quoted

    def create(self, connection: Connection) -> None:
        """Makes the table where it is missing; whoever is second finds the first one's."""
        if self._is_there(connection):
            return
        try:
            connection.execute(sql.SQL(_CREATE).format(self._table))
        except psycopg.Error as error:
            # IF NOT EXISTS does not see a table that is being made at the same moment
            if not (is_race(error) and self._is_there(connection)):
                raise

    def _is_there(self, connection: Connection) -> bool:
        row = connection.execute("SELECT to_regclass(%s)", (self._table.as_string(connection),)).fetchone()
        return row is not None and row[0] is not None

    def check(self, connection: Connection) -> None:
        """Raises ``FatalError`` where rows can't be read, put in and pruned."""
        name = self._table.as_string(connection)
        row = connection.execute(_RIGHTS, (name,)).fetchone()
        if row is None or not row[0]:
            fix = f"as its owner: GRANT SELECT, INSERT, UPDATE, DELETE ON {name} to the user in url"
            raise self.verdicts.fatal(f"{name} can't be written", "postgres.no_privilege", fix)

    def put(self, connection: Connection, delivery: Delivery, state: Claimed) -> Claimed | None:
        """Puts the hash in; None where that worked, else what is there. Waits for an open transaction with it."""
        values = (delivery.hash, state, self.pipeline, delivery.consumer, delivery.step, delivery.records)
        for _ in range(10):
            if connection.execute(sql.SQL(_PUT).format(self._table), values).fetchone():
                self._refuse_pruned(connection, delivery)
                return None
            if (there := self.state(connection, delivery)) is not None:
                return there
        raise self.verdicts.outage(f"{self.schema}.{NAME} changes all the time", "postgres.busy", "run again")

    def state(self, connection: Connection, delivery: Delivery) -> Claimed | None:
        """What is there under the delivery's hash."""
        query = sql.SQL("SELECT state FROM {} WHERE hash = %s").format(self._table)
        row = connection.execute(query, (delivery.hash,)).fetchone()
        return None if row is None else cast(Claimed, row[0])

    def prune(self, connection: Connection, delivery: Delivery) -> None:
        """Every hundredth step drops the hashes of steps that are far below, within the delivery's transaction."""
        floor = delivery.step - KEPT_STEPS
        # of children the first one does it for all
        if delivery.step % _EVERY or floor <= 0 or (delivery.take is not None and delivery.skip):
            return
        whose = (self.pipeline, delivery.consumer, floor)
        connection.execute(sql.SQL(_RAISE_FLOOR).format(self._table), (self._floor(delivery), *whose))
        connection.execute(sql.SQL(_PRUNE).format(self._table), whose)

    def _floor(self, delivery: Delivery) -> str:
        return f"floor:{self.pipeline}:{delivery.consumer}"

    def _refuse_pruned(self, connection: Connection, delivery: Delivery) -> None:
        # asked after the hash is in, by a statement of its own: the insert may have waited for whoever pruned it
        query = sql.SQL("SELECT step FROM {} WHERE hash = %s").format(self._table)
        row = connection.execute(query, (self._floor(delivery),)).fetchone()
        if row is None or delivery.step >= row[0]:
            return
        fix = (
            "a run this old must not go on; where the state store was started anew on purpose: "
            f"DELETE FROM {self.schema}.{NAME} WHERE pipeline = '{self.pipeline}', then run again"
        )
        message = f"step {delivery.step} is older than what {NAME} still knows (step {row[0]})"
        raise self.verdicts.fatal(message, "postgres.step_pruned", fix)


def is_race(error: psycopg.Error) -> bool:
    """Whether two made the same table at the same moment.

    Which of the three the second one meets depends on how far the first one was: the table's row type is there, the
    table is there, or neither was and a catalogue's unique index finds both.
    """
    return isinstance(error, (errors.DuplicateObject, errors.DuplicateTable)) or (
        isinstance(error, errors.UniqueViolation) and error.diag.schema_name == "pg_catalog"
    )
