"""Publishing of a delivery in one transaction: its hash into ``conduit_deliveries``, then its rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import repeat
from secrets import token_hex
from typing import NamedTuple, cast

import psycopg
from psycopg import errors, sql

from conduit_dagster import storage
from conduit_dagster.connectors.kept_hashes import new_floor
from conduit_dagster.connectors.postgres.catalog import read_table
from conduit_dagster.connectors.postgres.connection import Connection, value_of
from conduit_dagster.connectors.postgres.merge import Merge
from conduit_dagster.connectors.postgres.narrowed_lines import narrowed_lines
from conduit_dagster.connectors.postgres.row_search import RowSearch
from conduit_dagster.connectors.postgres.settings import PostgresDestinationSettings, TableName
from conduit_dagster.connectors.postgres.sqlstates import (
    DatabaseErrors,
    NamedTableError,
    RowError,
    TableError,
    copy_line,
    is_about_table,
)
from conduit_dagster.connectors.postgres.staged_rows import LineGroup
from conduit_dagster.connectors.postgres.table_changes import create_table, empty_tables
from conduit_dagster.connectors.postgres.table_plan import CopyBatch, Locator, Slice, batches
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Claim, Claimed, Delivery, Refusal, Rejected

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
_PRUNE = "DELETE FROM {} WHERE pipeline = %s AND consumer = %s AND step < %s AND state <> 'pruned'"
_RIGHTS = """
    SELECT bool_and(has_table_privilege(%s, right_)) FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) right_
"""


class Claims(NamedTuple):
    """The table of delivery hashes (``conduit_deliveries``) of one schema, for one pipeline."""

    schema: str
    pipeline: str
    verdicts: DatabaseErrors

    @property
    def _table(self) -> sql.Identifier:
        return TableName(self.schema, NAME).quoted

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
        query = sql.SQL("SELECT hash, state FROM {} WHERE hash = ANY(%s)").format(table)
        known: dict[str, Claimed] = {row[0]: row[1] for row in connection.execute(query, (hashes,))}
        # a hash that was deleted between the two statements is inserted on its own
        return [known.get(one.hash) or self.put(connection, one, state) or state for one in deliveries]

    def state(self, connection: Connection, delivery: Delivery) -> Claimed | None:
        """Return the state stored under the delivery's hash, or None."""
        query = sql.SQL("SELECT state FROM {} WHERE hash = %s").format(self._table)
        return cast("Claimed | None", value_of(connection, query, (delivery.hash,)))

    def prune(self, connection: Connection, delivery: Delivery) -> None:
        """At every hundredth step, delete the hashes of much older steps, within the delivery's transaction."""
        floor = new_floor(delivery)
        if floor is None:
            return
        whose = (self.pipeline, delivery.consumer, floor)
        connection.execute(sql.SQL(_RAISE_FLOOR).format(self._table), (self._floor(delivery), *whose))
        connection.execute(sql.SQL(_PRUNE).format(self._table), whose)

    def _floor(self, delivery: Delivery) -> str:
        return f"floor:{self.pipeline}:{delivery.consumer}"

    def _refuse_pruned(self, connection: Connection, delivery: Delivery) -> None:
        # queried after the insert, in a statement of its own: the insert may have waited for the pruning transaction
        query = sql.SQL("SELECT step FROM {} WHERE hash = %s").format(self._table)
        floor = value_of(connection, query, (self._floor(delivery),))
        if floor is None or delivery.step >= floor:
            return
        fix = (
            "a run this old must not go on; where the state store was started anew on purpose: "
            f"DELETE FROM {self.schema}.{NAME} WHERE pipeline = '{self.pipeline}', then run again"
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


class TablePublisher:
    """Publisher of deliveries to the database, all or nothing."""

    def __init__(self, settings: PostgresDestinationSettings, claims: Claims) -> None:
        self._settings = settings
        self._claims = claims
        self._locator = Locator()
        self._nacks = settings.nacks_missing_tables

    def publish(self, connection: Connection, delivery: Delivery) -> Claim | None:
        """Publish the delivery. Return None if it is published, now or earlier, else the claim stored under its hash.

        Raises as :class:`Destination` specifies. Nothing of the delivery is visible then, unless the connection was
        lost during the commit: ask ``holds``.
        """
        try:
            return self._publish(connection, delivery)
        except RowError as error:
            raise self._claims.verdicts.refused(error) from error.cause
        except TableError as error:
            raise self._unplaced(error.cause, delivery, error.table) from error.cause
        except psycopg.Error as error:
            raise self._unplaced(error, delivery) from error

    def _unplaced(self, error: psycopg.Error, delivery: Delivery, table: str = "") -> Exception:
        verdicts = self._claims.verdicts.of_table(table) if table else self._claims.verdicts
        if is_race(error):
            return verdicts.outage(
                "a table was created by another session at the same moment", "postgres.busy", "run again"
            )
        # reported at commit, for example by a deferred constraint: the record is known only if there is just one
        return verdicts.verdict(error, 0 if delivery.records == 1 else None)

    def _publish(self, connection: Connection, delivery: Delivery) -> Claim | None:
        try:
            return self._write_either_way(connection, delivery)
        except RowError:
            if delivery.records == 1:
                raise
        found = self._search(connection, delivery)
        if not found:
            # inserts were grouped: in record order none may be refused
            return self._write(connection, delivery, strict=True)
        raise self._rejected(found) from found[0].cause

    def _write_either_way(self, connection: Connection, delivery: Delivery) -> Claim | None:
        try:
            return self._write(connection, delivery)
        except (RowError, TableError) as error:
            if delivery.records == 1 or not isinstance(error.cause, errors.ForeignKeyViolation):
                raise
        # written table by table, a row may precede the row that it references
        return self._write(connection, delivery, strict=True)

    def _search(self, connection: Connection, delivery: Delivery) -> list[RowError]:
        """Return the errors of all refused rows, up to a limit, using a transaction that is rolled back."""

        def write(batch: CopyBatch) -> None:
            with self._about(batch.group.table, batch.slices[0].place):
                self._batch(connection, batch, _Progress(0, lambda: None))

        search = RowSearch(connection, write)
        try:
            with connection.transaction(force_rollback=True):
                if self._claims.put(connection, delivery, "delivered") is None:
                    slices = self._created(connection, delivery, self._locator.slices(delivery))
                    search.run(batches(slices, strict=True))
        except (TableError, psycopg.Error):
            if not search.found:
                raise
        return sorted(search.found, key=lambda error: error.place)

    def _rejected(self, found: list[RowError]) -> Exception:
        """Return the ``Rejected`` error for these rows, or the verdict on the first one if that is another error."""
        refused: list[Refusal] = []
        for error in found:
            verdict = self._claims.verdicts.refused(error)
            if not isinstance(verdict, Rejected):
                if not refused:
                    return verdict
                break
            refused.append(Refusal(verdict.place, verdict.nack))
        return Rejected(*refused[0], more=refused[1:])

    def _write(self, connection: Connection, delivery: Delivery, strict: bool = False) -> Claim | None:
        with connection.transaction():
            return self._put(connection, delivery, strict)

    def _put(self, connection: Connection, delivery: Delivery, strict: bool) -> Claim | None:
        # must come first: the insert waits for a concurrent transaction with the same hash and decides which of the two
        # wins
        there = self._claims.put(connection, delivery, "delivered")
        if there is not None:
            return None if there == "delivered" else there
        slices = self._created(connection, delivery, self._locator.slices(delivery))
        size = sum(one.bytes for _, one in slices)
        progress = _Progress(size, lambda: reached("mid-publish", self._claims.pipeline))
        for batch in batches(slices, strict):
            with self._about(batch.group.table, batch.slices[0].place):
                self._batch(connection, batch, progress)
        progress.pass_half()
        self._claims.prune(connection, delivery)
        return None

    @contextmanager
    def _about(self, table: TableName, place: int) -> Generator[None]:
        """Re-raise database errors with the table's name or, if records name the tables, with the place of one of its
        records."""
        try:
            yield
        except psycopg.Error as error:
            if self._nacks and is_about_table(error):
                raise NamedTableError(place, error) from error
            raise TableError(str(table), error) from error

    def _created(
        self, connection: Connection, delivery: Delivery, slices: list[tuple[LineGroup, Slice]]
    ) -> list[tuple[LineGroup, Slice]]:
        """Create missing tables; return the lines as the tables take them. Raises ``Rejected`` for records with values
        for columns that a table lacks which was created since staging."""
        missing = self._locator.missing(delivery)
        if not missing:
            return slices
        # a child creates only the tables of its own records
        first = {group.table: one.place for group, one in reversed(slices)}
        for name, place in first.items():
            if found := [one for one in missing if one.table == name]:
                with self._about(name, place):
                    create_table(connection, name, found)
        tables = {one.table: read_table(connection, one.table) for one in missing if one.table in first}
        url = storage.join(delivery.staging, f"narrowed-{token_hex(8)}")
        return narrowed_lines(slices, tables, url, self._settings.unmapped == "ignore")

    def _batch(self, connection: Connection, batch: CopyBatch, progress: _Progress) -> None:
        if batch.emptied:
            empty_tables(connection, batch, self._settings.create_table == "auto")
            return
        if not batch.group.merge:
            names = sql.SQL(", ").join(map(sql.Identifier, batch.group.columns))
            statement = sql.SQL("COPY {} ({}) FROM STDIN").format(batch.group.table.quoted, names)
            _copy(connection, statement, batch, batch.group.table.name, progress)
            return
        merge = Merge(connection, batch, self._settings.on_conflict)
        _copy(connection, merge.prepare(), batch, merge.relation, progress)
        merge.apply()


def _copy(
    connection: Connection, statement: sql.Composed, batch: CopyBatch, relation: str, progress: _Progress
) -> None:
    try:
        with connection.cursor().copy(statement) as copy:
            for chunk in batch.chunks():
                copy.write(chunk)
                progress.add(len(chunk))
    except psycopg.Error as error:
        line = copy_line(error, relation)
        if line is None:
            raise
        raise RowError(batch.place(line), error) from error


class _Progress:
    """Byte counter that calls back once, after about half of the bytes."""

    def __init__(self, size: int, half: Callable[[], None]) -> None:
        self._left = size / 2
        self._half: Callable[[], None] | None = half

    def add(self, size: int) -> None:
        """Count ``size`` more bytes as sent."""
        self._left -= size
        if self._left <= 0:
            self.pass_half()

    def pass_half(self) -> None:
        """Call back, unless already done."""
        half, self._half = self._half, None
        if half is not None:
            half()
