"""The driver's side: one transaction per delivery, the hash first, then the rows."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from psycopg import sql

from conduit_dagster.connectors.postgres.catalog import read_table
from conduit_dagster.connectors.postgres.create import create_tables
from conduit_dagster.connectors.postgres.deliveries import Claims, is_race
from conduit_dagster.connectors.postgres.errors import RowError, copy_line
from conduit_dagster.connectors.postgres.merge import MERGE, Merge
from conduit_dagster.connectors.postgres.names import TableName
from conduit_dagster.connectors.postgres.plan import Batch, Locator, batches
from conduit_dagster.connectors.postgres.session import Connection
from conduit_dagster.connectors.postgres.settings import PostgresDestinationSettings
from conduit_dagster.record import Nack
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Claim, Delivery, Rejected


class Publisher:
    """Writes deliveries into the database, all or nothing."""

    def __init__(self, settings: PostgresDestinationSettings, claims: Claims) -> None:
        self._settings = settings
        self._claims = claims
        self._locator = Locator()

    def publish(self, connection: Connection, delivery: Delivery) -> Claim | None:
        """None when it is in, from now or from before; else what its hash is claimed as.

        Raises what :class:`Destination` says; nothing of the delivery is in then, unless the connection was lost
        while it committed: ``holds`` tells.
        """
        try:
            return self._publish(connection, delivery)
        except RowError as error:
            raise self._claims.verdicts.verdict(error.cause, error.place) from error.cause
        except psycopg.Error as error:
            raise self._unplaced(error, delivery) from error

    def _unplaced(self, error: psycopg.Error, delivery: Delivery) -> Exception:
        verdicts = self._claims.verdicts
        if is_race(error):
            return verdicts.outage(
                "a table was created by somebody else at the same moment", "postgres.busy", "run again"
            )
        # found at the end, by a deferred constraint say: with one record it can only be that one
        return verdicts.verdict(error, 0 if delivery.records == 1 else None)

    def _publish(self, connection: Connection, delivery: Delivery) -> Claim | None:
        try:
            return self._write(connection, delivery)
        except RowError:
            slices = self._locator.slices(delivery)
            if batches(slices) == batches(slices, strict=True):
                raise
            # inserts were taken together: in the records' own order another one may be the first that is refused
            return self._write(connection, delivery, strict=True)

    def _write(self, connection: Connection, delivery: Delivery, strict: bool = False) -> Claim | None:
        with connection.transaction():
            return self._put(connection, delivery, strict)

    def _put(self, connection: Connection, delivery: Delivery, strict: bool) -> Claim | None:
        # first of all: the insert waits for another transaction with the same hash, and decides between the two
        there = self._claims.put(connection, delivery, "delivered")
        if there is not None:
            return None if there == "delivered" else there
        self._create(connection, delivery)
        slices = self._locator.slices(delivery)
        size = sum(one.bytes for _, one in slices)
        progress = _Progress(size, lambda: reached("mid-publish", self._claims.pipeline))
        for batch in batches(slices, strict):
            self._batch(connection, batch, progress)
        progress.pass_half()
        self._claims.prune(connection, delivery)
        return None

    def _create(self, connection: Connection, delivery: Delivery) -> None:
        if missing := self._locator.missing(delivery):
            create_tables(connection, missing)
            self._check_columns(connection, delivery, {one.table for one in missing})

    def _check_columns(self, connection: Connection, delivery: Delivery, names: set[TableName]) -> None:
        """A table that somebody made since the records were staged may lack columns."""
        found = {name: read_table(connection, name) for name in names}
        for group, one in self._locator.slices(delivery):
            table = found.get(group.table)
            lacks = [] if table is None else [name for name in group.columns if name not in table.columns]
            if lacks:
                message = f"the table {group.table} has no column for {', '.join(lacks[:5])}"
                raise Rejected(one.place, Nack("postgres.unmapped", message))

    def _batch(self, connection: Connection, batch: Batch, progress: _Progress) -> None:
        if not batch.group.merge:
            names = sql.SQL(", ").join(map(sql.Identifier, batch.group.columns))
            statement = sql.SQL("COPY {} ({}) FROM STDIN").format(batch.group.table.quoted, names)
            _copy(connection, statement, batch, batch.group.table.name, progress)
            return
        merge = Merge(connection, batch, self._settings.on_conflict)
        _copy(connection, merge.prepare(), batch, MERGE, progress)
        merge.apply()


def _copy(connection: Connection, statement: sql.Composed, batch: Batch, relation: str, progress: _Progress) -> None:
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
    """Calls back once, when about half of the bytes are on their way."""

    def __init__(self, size: int, half: Callable[[], None]) -> None:
        self._left = size / 2
        self._half: Callable[[], None] | None = half

    def add(self, size: int) -> None:
        """So many more have been sent."""
        self._left -= size
        if self._left <= 0:
            self.pass_half()

    def pass_half(self) -> None:
        """Half of it is passed, at the latest now."""
        half, self._half = self._half, None
        if half is not None:
            half()
