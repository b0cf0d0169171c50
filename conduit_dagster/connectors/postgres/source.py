"""The ``postgres`` source: the rows of tables, then every change of them, exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import psycopg

from conduit_dagster.connectors.postgres.changes import collection_of
from conduit_dagster.connectors.postgres.connection import Connection, Session, application
from conduit_dagster.connectors.postgres.replication_rights import check_replication, check_rights
from conduit_dagster.connectors.postgres.replication_slot import ReplicationSlot, SlotLook
from conduit_dagster.connectors.postgres.settings import DatabaseServer, TableName, conninfo
from conduit_dagster.connectors.postgres.source_errors import SourceErrors
from conduit_dagster.connectors.postgres.source_position import (
    PostgresPosition,
    StreamPoint,
    format_lsn,
    parse_position,
)
from conduit_dagster.connectors.postgres.source_reader import SplitReader, StreamDetail, as_json
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings, as_source
from conduit_dagster.connectors.postgres.source_tables import all_tables, table_exists
from conduit_dagster.connectors.postgres.table_copies import TableCopies
from conduit_dagster.record import READ_AT, SOURCE_CONNECTOR_ID, Mode
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.sdk import (
    Block,
    ConnectorContext,
    Dataset,
    Limit,
    Position,
    ReadOptions,
    ResumeState,
    Source,
    Split,
)

T = TypeVar("T")

_WAL_BYTES = 4
"""Bytes of WAL in a step for each byte of its limit: the WAL holds indexes and other tables' rows as well."""
_CONFIRM = 1.0
"""Seconds between two confirmations by the driver; a task that reads confirms as well."""
_QUIET_BYTES = 16 << 20
"""Bytes of WAL without a change of ours after which the position moves all the same: the server keeps no more."""


class PostgresSource(Source):
    """Rows of tables as ``snapshot`` records, in the order of their keys; then changes, in the order of their commits.

    The stream of a slot can be read again up to the last ack: the server forgets what was confirmed, and only what is
    durable in the state store is. Rows are copied under one snapshot that all tasks see; a copy that was interrupted
    goes on under another one, and changes that a copied row shows already are left out of the stream.
    Not guaranteed: the limit of a step's records; a transaction is never cut, but where a nack cuts it.
    """

    name = "postgres"
    Settings = PostgresSourceSettings
    gives_json = True
    sets_metadata = True

    def __init__(self, settings: Any, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._settings = as_source(settings)
        self._server = DatabaseServer.of(conninfo(self._settings.url))
        self._errors = SourceErrors(self._server, self._settings.slot)
        self._application = application(context.full_id)
        self._session = Session(self._settings, self._errors, f"{self._application}:source")
        self._slot = ReplicationSlot(self._settings, self._errors, context.full_id)
        self._copies = TableCopies(self._settings, self._errors, f"{self._application}:copy")
        self._forget()

    def _forget(self) -> None:
        """Forget what one run knows."""
        self._is_run, self._is_ready = False, False
        self._looked = 0
        self._moved = time.monotonic()
        self._acked, self._confirmed, self._confirming = 0, 0, 0.0
        self._generation = 0

    @property
    def unit(self) -> dict[str, Any]:
        """Database and slot: after a failover the host is another one, and positions tell another cluster apart."""
        return {"plugin": self.name, "database": self._server.database, "slot": self._settings.slot}

    @property
    def owned(self) -> str | None:
        """The slot: what one reader has confirmed, another one would never see."""
        if self._settings.snapshot_mode == "initial_only":
            return None
        return f"replication slot {self._settings.slot} of {self._server.place.rpartition('/')[0]}"

    @property
    def dataset(self) -> Dataset | None:
        """The table, if it is one."""
        named = self._settings.named_tables or ()
        host, _, database = self._server.place.rpartition("/")
        return Dataset(f"postgres://{host}", f"{database}.{named[0]}", is_table=True) if len(named) == 1 else None

    def initial(self) -> Position:
        """Return the position before anything was looked at."""
        return PostgresPosition().to_json()

    def place(self, position: Position) -> Any:
        """Return the place in the WAL, and how far each table was copied."""
        return parse_position(position).place

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block]:
        """Yield the rows or the changes of a split."""
        labels = {SOURCE_CONNECTOR_ID: self.context.full_id, READ_AT: str(self.context.clock.now_ns)}
        return SplitReader(self._settings, self._errors, self._application, labels).blocks(split, options)

    def resume(self, state: ResumeState) -> None:
        """Note that a run begins: only a run makes what the server lacks."""
        self._is_run = True

    # -- on the driver ------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[Connection], T]) -> T:
        with self._session.connection() as connection:
            return self._translated(lambda: question(connection))

    def _translated(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except psycopg.Error as error:
            # "from None": a traceback would show libpq's unredacted text
            raise self._errors.verdict(error) from None

    def check(self) -> None:
        """Ask the server for what a run needs: rights, settings, tables with keys, a usable slot. Makes nothing."""
        self._ask(self._check)

    def _check(self, connection: Connection) -> None:
        look, tables = self._slot.look(connection), self._tables(connection)
        check_rights(connection, self._server, tables, self._errors)
        self._copies.begin(connection, tables, PostgresPosition())
        if self._settings.snapshot_mode == "initial_only":
            return
        self._slot.require_logical(connection)
        check_replication(connection, self._server, look.exists, self._errors)
        self._slot.require_published(connection, tables)
        if look.is_lost:
            raise self._errors.slot_lost()

    def horizon(self) -> Any:
        """Return the end of the WAL."""
        return {"lsn": format_lsn(self._ask(self._slot.look).flushed)}

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the position after the next rows to copy, else after the changes that are there."""
        position = parse_position(start)
        return self._ask(lambda connection: self._latest(connection, position, limit, horizon)).to_json()

    def _latest(self, connection: Connection, start: PostgresPosition, limit: Limit, horizon: Any) -> PostgresPosition:
        look = self._slot.look(connection)
        if not self._is_run:
            return self._tried(connection, start, look, limit)
        position = self._ready(connection, start, look)
        if position.copied.keys() < start.copied.keys():
            # a step of its own: what a range copies is what its end has more than its start
            return position
        further = self._copies.further(position, limit)
        if further != start:
            return further
        return start if not start.lsn else self._streamed(connection, start, look, (limit, horizon))

    def _tried(self, connection: Connection, start: PostgresPosition, look: SlotLook, limit: Limit) -> PostgresPosition:
        """For a command that only looks: make nothing, take rows to show, and check a position that is given."""
        if look.is_other(start.server):
            raise self._errors.other_server()
        if start.lsn:
            self._require_kept(look, start.point.lsn)
            return start
        self._copies.begin(connection, self._tables(connection), start)
        return self._copies.further(msgspec.structs.replace(start, server=look.server), limit)

    def _ready(self, connection: Connection, start: PostgresPosition, look: SlotLook) -> PostgresPosition:
        """Once in a run: find the tables, make what the server lacks. Return the position, with a place in the WAL."""
        if self._is_ready and start.server:
            return start
        if look.is_other(start.server):
            raise self._errors.other_server()
        tables = self._tables(connection)
        position, is_new = msgspec.structs.replace(start, server=look.server), False
        if self._settings.snapshot_mode != "initial_only":
            added = self._slot.publish(connection, tables)
            if start.lsn:
                self._require_kept(look, start.point.lsn)
                # what happened to them meanwhile was not published: a table was dropped and made anew
                position = position.without(map(str, added))
            else:
                lsn, is_new = self._slot.create(connection)
                position = position.at(lsn)
            if start.everything:
                position = position.with_whole(map(str, tables))
            is_open = self._settings.named_tables is None and self._slot.is_open(connection)
            position = msgspec.structs.replace(position, everything=is_open)
        if self._copies.begin(connection, tables, position) and not is_new:
            self._slot.wait_for_older(connection)
        self._is_ready = True
        return position

    def _tables(self, connection: Connection) -> list[TableName]:
        named = self._settings.named_tables
        tables = all_tables(connection, self._settings.db_schema) if named is None else list(named)
        missing = [table for table in named or () if not table_exists(connection, table)]
        if missing or not tables:
            what = ", ".join(map(str, missing)) or f"{self._settings.db_schema}.*"
            raise self._errors.unfit(
                "postgres.no_table", f"there is no table {what}", "create it, or correct the setting tables"
            )
        return tables

    def _require_kept(self, look: SlotLook, lsn: int) -> None:
        """Raise ``FatalError`` if the server no longer has all changes from ``lsn`` on."""
        if not look.exists:
            raise self._errors.slot_missing()
        if look.is_lost:
            raise self._errors.slot_lost()
        # the server confirms what we ack, and we ack what is durable: somebody else has read on
        if look.confirmed > lsn:
            raise self._errors.slot_moved(format_lsn(look.confirmed), format_lsn(lsn))

    def _streamed(
        self, connection: Connection, start: PostgresPosition, look: SlotLook, bounds: tuple[Limit, Any]
    ) -> PostgresPosition:
        limit, horizon = bounds
        lsn = start.point.lsn
        there = look.flushed if horizon is None else min(look.flushed, _lsn_of(horizon))
        if there <= lsn or self._is_quiet(connection, lsn, there):
            return start
        self._moved = time.monotonic()
        return start.at(min(there, lsn + _WAL_BYTES * limit.bytes)).settled()

    def _is_quiet(self, connection: Connection, lsn: int, upto: int) -> bool:
        """Return whether nothing of ours is in the WAL up to there, and it is not yet time to move on all the same."""
        # a longer stretch is read without a look: to look is to decode it, as to read it is
        if upto - lsn >= _QUIET_BYTES or 0 < self._settings.heartbeat <= time.monotonic() - self._moved:
            return False
        if upto > self._looked:
            self._confirm(connection)
            if self._slot.has_changes(connection, upto):
                return False
            self._looked = upto
        return True

    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Return parts of tables for all tasks, or the range of the stream for one."""
        before, after = parse_position(start), parse_position(end)
        splits = self._translated(lambda: self._copies.split(before, after, n))
        begin = before.point
        if not before.lsn and after.lsn:
            # from the slot's beginning on: it has not moved yet
            begin = StreamPoint(self._ask(self._slot.look).confirmed)
        if after.point > begin:
            ordinal = sum(split.records or 0 for split in splits)
            at = msgspec.structs.replace(after, lsn=format_lsn(begin.lsn), index=begin.changes)
            detail, size = StreamDetail(after.point, self._acked), after.point.lsn - begin.lsn
            splits.append(Split((before if before.lsn else at).to_json(), ordinal, bytes=size, detail=as_json(detail)))
        return splits

    def gives_up(self, start: Position, end: Position) -> bool:
        """Return whether rows were to be copied under a snapshot that is gone; they are then planned again."""
        return self._copies.gives_up(parse_position(start), parse_position(end))

    def verify(self, start: Position, end: Position) -> None:
        """Raise ``FatalError`` if the server no longer has the changes of a range."""
        before, after = parse_position(start), parse_position(end)
        if not after.lsn:
            return
        look = self._ask(self._slot.look)
        if look.is_other(after.server):
            raise self._errors.other_server()
        self._require_kept(look, (before if before.lsn else after).point.lsn)

    def ack(self, upto: Position, generation: int) -> None:
        """Let the server forget what is durable; lost acks are repeated, and a task that reads confirms as well."""
        position = parse_position(upto)
        if generation < self._generation:
            return
        self._generation = generation
        self._copies.release(position)
        self._acked = max(self._acked, position.point.lsn)
        if self._acked > self._confirmed and time.monotonic() - self._confirming > _CONFIRM:
            self._ask(self._confirm)

    def _confirm(self, connection: Connection) -> None:
        if self._acked <= self._confirmed:
            return
        self._confirming = time.monotonic()
        look = self._slot.look(connection)
        is_ahead = look.exists and not look.is_lost and look.confirmed < self._acked <= look.flushed
        if is_ahead and self._slot.confirm(connection, self._acked):
            self._confirmed = self._acked

    def close(self) -> None:
        """Confirm what was acked, and close the connections."""
        try:
            # it is repeated with the next start
            with suppress(ConduitError):
                if self._acked > self._confirmed:
                    self._ask(self._confirm)
        finally:
            self._copies.close()
            self._session.close()
            self._forget()

    # -- for people ---------------------------------------------------------------------------------------------

    def lag(self, position: Position) -> int | None:
        """Return the bytes of WAL behind a position, other tables' included; 0 if nothing in it is ours.

        None before the slot was made. Where others alone write, they count from 16 MiB on.
        """
        known = parse_position(position)
        return self._ask(lambda connection: self._lag(connection, known.point.lsn)) if known.lsn else None

    def _lag(self, connection: Connection, lsn: int) -> int:
        look = self._slot.look(connection)
        behind = max(0, look.flushed - lsn)
        if 0 < behind < _QUIET_BYTES and look.exists and not look.is_lost and look.confirmed <= lsn:
            return behind if self._slot.has_changes(connection, look.flushed) else 0
        return behind

    def counts(self, position: Position) -> Mapping[str, int]:
        """Return how many tables are copied, and how many are being copied."""
        known = parse_position(position)
        copied = sum(map(known.is_copied, known.copied))
        return {"tables_copied": copied, "tables_begun": len(known.copied) - copied} if known.copied else {}

    def collection_modes(self, position: Position) -> Mapping[str, Mode]:
        """Return ``copy`` for tables that are being copied, ``complete`` for those that were."""
        known = parse_position(position)
        return {collection_of(table): "complete" if known.is_copied(table) else "copy" for table in known.copied}


def _lsn_of(horizon: Mapping[str, str]) -> int:
    return PostgresPosition(lsn=horizon["lsn"]).point.lsn
