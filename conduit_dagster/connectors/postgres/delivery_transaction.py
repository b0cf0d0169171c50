"""Publishing of a delivery in one transaction: its hash into ``conduit_deliveries``, then its rows.

After a refusal, all rows that the database refuses are searched for; nothing of that is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from secrets import token_hex

import psycopg
from psycopg import errors, sql

from conduit_dagster import storage
from conduit_dagster.connectors.postgres.catalog import read_table
from conduit_dagster.connectors.postgres.claims_table import Claims, is_race
from conduit_dagster.connectors.postgres.connection import Connection, transaction
from conduit_dagster.connectors.postgres.deferred_references import records_at_fault
from conduit_dagster.connectors.postgres.merge import Merge
from conduit_dagster.connectors.postgres.new_rows import DirectCopy
from conduit_dagster.connectors.postgres.refused_row_search import RowSearch
from conduit_dagster.connectors.postgres.regrouped_lines import Placed, narrowed_lines, widened_lines
from conduit_dagster.connectors.postgres.settings import PostgresDestinationSettings, TableName
from conduit_dagster.connectors.postgres.sqlstates import (
    NamedTableError,
    RowError,
    TableError,
    copy_line,
    is_about_table,
    is_outage,
)
from conduit_dagster.connectors.postgres.table_changes import create_table, empty_tables
from conduit_dagster.connectors.postgres.table_plan import CopyBatch, Locator, batches
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Claim, Delivery, Refusal, Rejected


class TablePublisher:
    """Publisher of deliveries to the database, all or nothing."""

    def __init__(self, settings: PostgresDestinationSettings, claims: Claims) -> None:
        self._settings = settings
        self._claims = claims
        self._locator = Locator()
        self._direct = DirectCopy()
        self._nacks = settings.nacks_missing_tables
        self._lacking: set[TableName] = set()
        """Tables that lost a column of lines that were staged before."""

    def publish(self, connection: Connection, delivery: Delivery) -> Claim | None:
        """Publish the delivery. Return None if it is published, now or earlier, else the claim stored under its hash.

        Raises as :class:`Destination` specifies. Nothing of the delivery is visible then, unless the connection was
        lost during the commit: ask ``holds``.
        """
        try:
            return self._publish(connection, delivery)
        except _ColumnLostError as error:
            self._lacking.add(error.table)
            return self.publish(connection, delivery)
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
        except errors.ForeignKeyViolation as error:
            # at the commit, by a deferred one: that of a table being written is a TableError
            refused = self._unreferenced(connection, delivery, error)
            if not refused:
                raise
            raise Rejected(*refused[0], more=refused[1:]) from error
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

    def _unreferenced(self, connection: Connection, delivery: Delivery, error: psycopg.Error) -> list[Refusal]:
        """Return the records due to which a deferred foreign key failed, using a transaction that is rolled back."""
        if delivery.records == 1:
            return []
        found: list[int] = []
        for strict in (False, True):
            try:
                with transaction(connection, self._settings, force_rollback=True):
                    if self._put(connection, delivery, strict) is None:
                        found = records_at_fault(connection, error, self._locator.slices(delivery))
                break
            except (RowError, TableError):
                continue
        nack = self._claims.verdicts.nack(error, is_alone=len(found) == 1)
        return [Refusal(place, nack) for place in found]

    def _search(self, connection: Connection, delivery: Delivery) -> list[RowError]:
        """Return the errors of all refused rows, up to a limit, using a transaction that is rolled back."""

        def write(batch: CopyBatch) -> None:
            with self._about(batch.group.table, batch.slices[0].place):
                self._batch(connection, batch, _Progress(0, lambda: None))

        search = RowSearch(connection, write)
        try:
            with transaction(connection, self._settings, force_rollback=True):
                with self._claims.told():
                    there = self._claims.put(connection, delivery, "delivered")
                if there is None:
                    search.run(batches(self._slices(connection, delivery), strict=True))
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
        with transaction(connection, self._settings):
            return self._put(connection, delivery, strict)

    def _put(self, connection: Connection, delivery: Delivery, strict: bool) -> Claim | None:
        # must come first: the insert waits for a concurrent transaction with the same hash and decides which of the two
        # wins
        with self._claims.told():
            there = self._claims.put(connection, delivery, "delivered")
        if there is not None:
            return None if there == "delivered" else there
        slices = self._slices(connection, delivery)
        size = sum(one.bytes for _, one in slices)
        progress = _Progress(size, lambda: reached("mid-publish", self._claims.pipeline))
        for batch in batches(slices, strict):
            with self._about(batch.group.table, batch.slices[0].place):
                self._batch(connection, batch, progress)
        progress.pass_half()
        with self._claims.told():
            self._claims.prune(connection, delivery)
        return None

    @contextmanager
    def _about(self, table: TableName, place: int) -> Generator[None]:
        """Re-raise database errors with the table's name or, if records name the tables, with the place of one of its
        records."""
        try:
            yield
        except psycopg.Error as error:
            if isinstance(error, errors.UndefinedColumn) and table not in self._lacking:
                raise _ColumnLostError(table) from error
            if self._nacks and is_about_table(error):
                raise NamedTableError(place, error) from error
            raise TableError(str(table), error) from error
        except RowError as error:
            # of a trigger, of which COPY says the line
            if self._nacks and is_about_table(error.cause):
                raise NamedTableError(error.place, error.cause) from error.cause
            raise

    def _slices(self, connection: Connection, delivery: Delivery) -> list[Placed]:
        slices = self._created(connection, delivery, self._locator.slices(delivery))
        return widened_lines(slices, storage.join(delivery.staging, f"widened-{token_hex(8)}"))

    def _created(self, connection: Connection, delivery: Delivery, slices: list[Placed]) -> list[Placed]:
        """Create missing tables; return the lines as the tables take them. Raises ``Rejected`` for records with values
        for columns that a table lacks which was created since staging, or has lost."""
        missing = self._locator.missing(delivery)
        if not missing and not self._lacking:
            return slices
        # a child creates only the tables of its own records
        first = {group.table: one.place for group, one in reversed(slices)}
        for name, place in first.items():
            if found := [one for one in missing if one.table == name]:
                with self._about(name, place):
                    create_table(connection, name, found)
        changed = self._lacking.union(one.table for one in missing)
        tables = {name: read_table(connection, name) for name in first if name in changed}
        url = storage.join(delivery.staging, f"narrowed-{token_hex(8)}")
        return narrowed_lines(slices, tables, url, self._settings.unmapped == "ignore")

    def _batch(self, connection: Connection, batch: CopyBatch, progress: _Progress) -> None:
        if batch.emptied:
            empty_tables(connection, batch, self._settings.create_table == "auto")
            return
        if not batch.group.merge:
            _copy_rows(connection, batch, progress)
            return
        if self._direct.copied(connection, batch, lambda: _copy_rows(connection, batch, progress)):
            return
        merge = Merge(connection, batch, self._settings.on_conflict)
        try:
            statement = merge.prepare()
        except errors.RaiseException as error:
            message, fix = f"no temporary table: {error.diag.message_primary}", "let the event trigger allow these"
            raise self._claims.verdicts.fatal(message, "postgres.no_privilege", fix) from error
        _copy(connection, statement, batch, merge.relation, progress)
        merge.apply()


class _ColumnLostError(Exception):
    """A table lacks a column of the staged lines."""

    def __init__(self, table: TableName) -> None:
        super().__init__(table)
        self.table = table


def _copy_rows(connection: Connection, batch: CopyBatch, progress: _Progress) -> None:
    """Copy the lines straight into their table."""
    names = sql.SQL(", ").join(map(sql.Identifier, batch.group.columns))
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(batch.group.table.quoted, names)
    _copy(connection, statement, batch, batch.group.table.name, progress)


def _copy(
    connection: Connection, statement: sql.Composed, batch: CopyBatch, relation: str, progress: _Progress
) -> None:
    try:
        with connection.cursor().copy(statement) as copy:
            for chunk in batch.chunks():
                copy.write(chunk)
                progress.add(len(chunk))
    except psycopg.Error as error:
        line = None if is_outage(error) else copy_line(error, relation)
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
