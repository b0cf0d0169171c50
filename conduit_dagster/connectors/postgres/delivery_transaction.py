"""Publishing of a delivery in one transaction: its hash into ``conduit_deliveries``, then its rows."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from secrets import token_hex

import psycopg
from psycopg import errors, sql

from conduit_dagster import storage
from conduit_dagster.connectors.postgres.catalog import read_table
from conduit_dagster.connectors.postgres.claims_table import Claims, is_race
from conduit_dagster.connectors.postgres.connection import Connection
from conduit_dagster.connectors.postgres.merge import Merge
from conduit_dagster.connectors.postgres.narrowed_lines import narrowed_lines
from conduit_dagster.connectors.postgres.row_search import RowSearch
from conduit_dagster.connectors.postgres.settings import PostgresDestinationSettings, TableName
from conduit_dagster.connectors.postgres.sqlstates import (
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
from conduit_dagster.sdk import Claim, Delivery, Refusal, Rejected


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
