"""Delivery hashes in the table ``conduit_deliveries``: the claims of one pipeline, in the transactions of its rows."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import repeat
from secrets import token_hex
from typing import NamedTuple, cast

import psycopg
from psycopg import errors, sql

from conduit_dagster.connectors.kept_hashes import new_floor
from conduit_dagster.connectors.postgres.connection import Connection, value_of
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.sqlstates import DatabaseErrors, is_data, state_name
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.sdk import Claimed, Delivery

NAME = "conduit_deliveries"

_CREATE = """
    CREATE TABLE IF NOT EXISTS {} (
        hash text PRIMARY KEY, state text NOT NULL, pipeline text NOT NULL, consumer text NOT NULL,
        step bigint NOT NULL, records bigint NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())
"""
_PUT = """
    INSERT INTO {} (hash, state, pipeline, consumer, step, records) VALUES (%s, %s, %s, %s, %s, %s)
    ON CONFLICT DO NOTHING RETURNING 1
"""
_PUT_ALL = """
    INSERT INTO {} (hash, state, pipeline, consumer, step, records)
    SELECT hash, %s, %s, %s, %s, records
    FROM unnest(%s::text[], %s::bigint[]) WITH ORDINALITY AS d (hash, records, place)
    ORDER BY place ON CONFLICT DO NOTHING RETURNING hash
"""
_RAISE_FLOOR = """
    INSERT INTO {0} AS d (hash, state, pipeline, consumer, step, records) VALUES (%s, 'pruned', %s, %s, %s, 0)
    ON CONFLICT (hash) DO UPDATE SET step = greatest(d.step, excluded.step), at = clock_timestamp()
"""
_PUT_MARK = """
    INSERT INTO {} (hash, state, pipeline, consumer, step, records) VALUES (%s, %s, %s, %s, 9223372036854775807, 0)
    ON CONFLICT DO NOTHING
"""
_PRUNE = "DELETE FROM {} WHERE pipeline = %s AND consumer = %s AND step < %s AND state <> 'pruned'"
_RIGHTS = """
    SELECT bool_and(has_table_privilege(%s, right_)) FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) right_
"""
_MADE_ANEW = "nothing: the next start makes it anew. If it was moved away, move it back before"
_ALTERED = "remove what was added to it: a trigger, a constraint, a column"


class Claims(NamedTuple):
    """The table of delivery hashes (``conduit_deliveries``) of one schema, for one pipeline."""

    schema: str
    pipeline: str
    verdicts: DatabaseErrors

    @property
    def _table(self) -> sql.Identifier:
        return TableName(self.schema, NAME).quoted

    @contextmanager
    def told(self) -> Generator[None]:
        """Raise database errors as those of this table, which no record causes."""
        try:
            yield
        except psycopg.Error as error:
            raise self._verdict(error) from None

    def _verdict(self, error: psycopg.Error) -> Exception:
        name = str(TableName(self.schema, NAME))
        if isinstance(error, errors.UndefinedTable):
            return self.verdicts.outage(f"{name} was dropped during the run", "postgres.deliveries_gone", _MADE_ANEW)
        if is_data(error):
            message = f"{name} takes no hashes: {state_name(error.sqlstate or '')}: {error.diag.message_primary}"
            return self.verdicts.fatal(message, "postgres.deliveries_altered", _ALTERED)
        return self.verdicts.of_table(name).verdict(error)

    def create(self, connection: Connection) -> None:
        """Create the table if it is missing. Safe when several processes create it at the same time."""
        if self._is_there(connection):
            return
        try:
            connection.execute(sql.SQL(_CREATE).format(self._table))
        except psycopg.Error as error:
            # IF NOT EXISTS does not see a table that is being created concurrently
            if not (is_race(error) and self._is_there(connection)):
                raise

    def _is_there(self, connection: Connection) -> bool:
        return value_of(connection, "SELECT to_regclass(%s)", (self._table.as_string(connection),)) is not None

    def check(self, connection: Connection) -> None:
        """Raise ``FatalError`` without the privileges to read, insert, update and delete rows."""
        name = self._table.as_string(connection)
        if not value_of(connection, _RIGHTS, (name,)):
            fix = f"as its owner: GRANT SELECT, INSERT, UPDATE, DELETE ON {name} to the user in url"
            raise self.verdicts.fatal(f"{name} can't be written", "postgres.no_privilege", fix)

    def put(self, connection: Connection, delivery: Delivery, state: Claimed) -> Claimed | None:
        """Insert the hash; return None on success, else the state already stored. Blocks while an open transaction
        holds the same hash."""
        values = (delivery.hash, state, self.pipeline, delivery.consumer, delivery.step, delivery.records)
        for _ in range(10):
            if connection.execute(sql.SQL(_PUT).format(self._table), values).fetchone():
                self._refuse_pruned(connection, delivery)
                return None
            if (there := self.state(connection, delivery)) is not None:
                return there
        raise self.verdicts.outage(f"{self.schema}.{NAME} changes all the time", "postgres.busy", "run again")

    def put_all(self, connection: Connection, deliveries: Sequence[Delivery], state: Claimed) -> list[Claimed]:
        """Insert the hashes of several deliveries of one step, in order; return the stored state of each."""
        first, table = deliveries[0], self._table
        hashes, records = [one.hash for one in deliveries], [one.records for one in deliveries]
        values = (state, self.pipeline, first.consumer, first.step, hashes, records)
        new = {row[0] for row in connection.execute(sql.SQL(_PUT_ALL).format(table), values)}
        if new:
            self._refuse_pruned(connection, first)
        if len(new) == len(deliveries):
            return list[Claimed](repeat(state, len(deliveries)))
        # locked as in state()
        query = sql.SQL("SELECT hash, state FROM {} WHERE hash = ANY(%s) FOR UPDATE").format(table)
        known: dict[str, Claimed] = {row[0]: row[1] for row in connection.execute(query, (hashes,))}
        # a hash that was deleted between the two statements is inserted on its own
        return [known.get(one.hash) or self.put(connection, one, state) or state for one in deliveries]

    def state(self, connection: Connection, delivery: Delivery) -> Claimed | None:
        """Return the state stored under the delivery's hash, or None. Call it in a transaction that is committed.

        A commit that was cut off while it waited for synchronous standbys can be seen, and they may lack it: with the
        lock, this transaction's commit waits for them. On a standby, which may not have the newest hashes, it fails.
        """
        query = sql.SQL("SELECT state FROM {} WHERE hash = %s FOR UPDATE").format(self._table)
        return cast("Claimed | None", value_of(connection, query, (delivery.hash,)))

    def mark(self, connection: Connection, consumer: str) -> str | None:
        """Return the text by which the table is known as the one that has the consumer's hashes; None if it has none.

        A dump that is restored has it too; a table that was dropped, emptied or made anew does not.
        """
        query = sql.SQL("SELECT state FROM {} WHERE hash = %s").format(self._table)
        return cast("str | None", value_of(connection, query, (self._mark(consumer),)))

    def put_mark(self, connection: Connection, consumer: str) -> None:
        """Mark the table, if it is not marked. Its step is beyond all others, so that no version prunes it."""
        values = (self._mark(consumer), f"mark {token_hex(8)}", self.pipeline, consumer)
        connection.execute(sql.SQL(_PUT_MARK).format(self._table), values)

    def _mark(self, consumer: str) -> str:
        return self._key("mark", consumer)

    def gone(self, step: int) -> ConduitError:
        """Return the error for a prepared step whose hash may have been lost with the table."""
        what = f"{self.schema}.{NAME} lost its rows since step {step} was prepared"
        fix = "set on-deliveries-gone: resend, and look for its records at the destination: if they are missing, run"
        fix += f" again; if they are there, first conduit-dagster offsets mark {self.pipeline} CONNECTOR OFFSET"
        message = f"{what}: nothing says whether the step was written"
        return self.verdicts.fatal(message, "postgres.deliveries_gone", fix)

    def prune(self, connection: Connection, delivery: Delivery) -> None:
        """With one delivery in a hundred, delete the hashes of much older steps, within the delivery's transaction."""
        floor = new_floor(delivery)
        if floor is None:
            return
        whose = (self.pipeline, delivery.consumer, floor)
        connection.execute(sql.SQL(_RAISE_FLOOR).format(self._table), (self._floor(delivery), *whose))
        connection.execute(sql.SQL(_PRUNE).format(self._table), whose)

    def _floor(self, delivery: Delivery) -> str:
        return self._key("floor", delivery.consumer)

    def _key(self, kind: str, consumer: str) -> str:
        # ids may have colons: two pairs of ids must not share a row
        return ":".join((kind, self.pipeline.replace(":", "%3A"), consumer.replace(":", "%3A")))

    def _refuse_pruned(self, connection: Connection, delivery: Delivery) -> None:
        # queried after the insert, in a statement of its own: the insert may have waited for the pruning transaction
        query = sql.SQL("SELECT step FROM {} WHERE hash = %s").format(self._table)
        floor = value_of(connection, query, (self._floor(delivery),))
        if floor is None or delivery.step >= floor:
            return
        named = self._floor(delivery).replace("'", "''")
        fix = (
            "a run this old must not go on; where the state store was started anew on purpose, or another project"
            " writes here with the same pipeline and connector id, as docs/postgres.md says under Hashes: "
            f"DELETE FROM {TableName(self.schema, NAME).typed} WHERE hash = '{named}', then run again"
        )
        message = f"step {delivery.step} is older than what {NAME} still knows (step {floor})"
        raise self.verdicts.fatal(message, "postgres.step_pruned", fix)


def is_race(error: psycopg.Error) -> bool:
    """Return whether the error comes from two concurrent creations of the same table.

    The second creator gets one of three errors, depending on the progress of the first: the table's row type exists,
    the table exists, or neither did and a unique index of the catalog detects both.
    """
    return isinstance(error, (errors.DuplicateObject, errors.DuplicateTable)) or (
        isinstance(error, errors.UniqueViolation) and error.diag.schema_name == "pg_catalog"
    )
