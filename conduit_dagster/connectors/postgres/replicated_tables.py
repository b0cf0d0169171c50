"""Initial copy of tables, then changes through a replication slot: the driver's side."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import psycopg

from conduit_dagster.connectors.postgres.connection import Connection
from conduit_dagster.connectors.postgres.copy_snapshot import OpenTransactions
from conduit_dagster.connectors.postgres.publication import Publication, PublicationWatch
from conduit_dagster.connectors.postgres.replication_slot import ReplicationSlot, SlotLook
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.source_position import PostgresPosition, StreamPoint, format_lsn, parse_lsn
from conduit_dagster.connectors.postgres.source_reader import StreamDetail, as_json
from conduit_dagster.connectors.postgres.source_session import SourceSession
from conduit_dagster.connectors.postgres.source_tables import oid_of, published_shapes
from conduit_dagster.connectors.postgres.stream_pace import AwaitedStandbys, StreamPace, is_dear
from conduit_dagster.connectors.postgres.table_copies import TableCopies
from conduit_dagster.connectors.postgres.wal_history import TimelineCheck, WalTimes, open_stream
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.sdk import Leftover, Limit, Split

_CONFIRM = 1.0
"""Seconds between two confirmations by the driver; reading tasks confirm as well."""
_QUIET_BYTES = 16 << 20
"""Bytes of WAL without a relevant change after which the position moves anyway, so that the server can discard them."""


class ReplicatedTables:
    """Follower that copies tables, then reads the stream of the slot. The stream can be read again from the last ack
    on.

    The server discards confirmed WAL; only positions that are durable in the state store are confirmed.
    """

    lag_unit = "bytes"

    def __init__(self, session: SourceSession) -> None:
        self._session = session
        self._settings = session.settings
        self._errors = session.errors
        self._publication = Publication(session.settings, session.errors, session.owner)
        self._slot = ReplicationSlot(session.settings, session.errors, self._publication)
        self._timelines = TimelineCheck(session.settings, session.errors, session.application)
        self._copies = TableCopies(session.settings, session.errors, f"{session.application}:copy")
        self._watch = PublicationWatch(self._publication, session.settings.snapshot_mode == "initial")
        self._standbys = AwaitedStandbys(session.settings, session.errors, self._slot)
        self._forget()

    def _forget(self) -> None:
        """Reset the state of a run."""
        self._is_run, self._is_ready, self._is_ours = False, False, False
        self._looked = 0
        self._moved = time.monotonic()
        self._acked, self._confirmed, self._confirming = 0, 0, 0.0
        self._times, self._pace = WalTimes(), StreamPace()

    @property
    def owned(self) -> str | None:
        """The slot: changes that one reader has confirmed are lost to any other."""
        if self._settings.snapshot_mode == "initial_only":
            return None
        return f"replication slot {self._settings.slot} of {self._session.server.place.rpartition('/')[0]}"

    def begin_run(self) -> None:
        """Note that a run begins: only a run creates a missing publication or slot."""
        self._is_run = True

    def check(self) -> None:
        """Check the prerequisites of a run: privileges, server settings, tables with keys, a usable slot. Creates
        nothing."""
        self._session.ask(self._check)

    def _check(self, connection: Connection) -> None:
        look, tables = self._slot.look(connection), self._session.tables(connection)
        self._session.require_readable(connection, tables)
        self._copies.begin(connection, tables, PostgresPosition())
        if self._settings.snapshot_mode == "initial_only":
            return
        self._slot.require_logical(connection, look)
        self._slot.require_rights(connection, self._session.server.user, look.exists)
        self._publication.require_published(connection, tables)
        self._require_replication()
        if look.is_lost:
            raise self._errors.slot_lost()

    def _require_replication(self) -> None:
        """Raise ``FatalError`` if what answers takes no replication, as a pooler does."""
        open_stream(self._settings, self._errors, f"{self._session.application}:check").close()

    def horizon(self) -> Any:
        """Return the end of the WAL."""
        return {"lsn": format_lsn(self._session.ask(self._slot.look).flushed)}

    # -- planning -----------------------------------------------------------------------------------------------

    def latest(self, start: PostgresPosition, limit: Limit, horizon: Any) -> PostgresPosition:
        """Return the position after the next rows to copy, else after the available changes."""
        return self._session.ask(lambda connection: self._latest(connection, start, limit, horizon))

    def _latest(self, connection: Connection, start: PostgresPosition, limit: Limit, horizon: Any) -> PostgresPosition:
        look = self._slot.look(connection)
        if not self._is_run:
            return self._tried(connection, start, look, limit)
        self._times.add(look.flushed, look.at)
        if self._is_ready and self._watch.has_lost(connection):
            # as at a start: published again where we may, and copied again; what was missed meanwhile is neither in the
            # stream nor in the snapshot of a copy that is under way
            self._is_ready = False
            self._copies.close()
        position = self._ready(connection, start, look)
        if position.copied.keys() < start.copied.keys():
            # this needs a step of its own: a range copies what its end has in addition to its start
            return position
        further = self._copies.further(position, limit)
        if further != start:
            return further
        return start if not start.lsn else self._streamed(connection, start, look, (limit, horizon))

    def _tried(self, connection: Connection, start: PostgresPosition, look: SlotLook, limit: Limit) -> PostgresPosition:
        """Return a position for a read-only command: create nothing, copy rows to show, and verify a given position."""
        if look.is_other(start.server):
            raise self._errors.other_server()
        if start.lsn:
            self._require_kept(look, start)
            return start
        self._copies.begin(connection, self._session.tables(connection), start)
        return self._copies.further(msgspec.structs.replace(start, server=look.server), limit)

    def _ready(self, connection: Connection, start: PostgresPosition, look: SlotLook) -> PostgresPosition:
        """Find the tables and create the publication and slot if missing, once in a run. Return the position with an
        LSN."""
        if self._is_ready and start.server:
            return start
        if look.is_other(start.server):
            raise self._errors.other_server()
        tables = self._session.tables(connection)
        position = msgspec.structs.replace(start, server=look.server)
        if self._settings.snapshot_mode != "initial_only":
            if stale := self._stale(connection, start, look, tables):
                # stored before they are published: a run that ends in between would take them for copied
                return position.without(stale)
            if start.everything:
                position = position.with_whole(map(str, tables))
            position = position.with_oids(self._oids(connection, tables, position))
            self._copies.require_keys(connection, tables, position)
            if not start.lsn:
                # tables are copied for hours before a task connects, and the slot keeps the WAL from now on
                self._require_replication()
            self._publication.publish(connection, tables, is_read=bool(start.lsn))
            self._watch.begin(tables)
            if not start.lsn:
                position = position.at(self._slot.create(connection)).on(look.timeline)
            is_open = self._settings.named_tables is None and self._publication.is_open(connection)
            position = msgspec.structs.replace(position, everything=is_open)
            position = position.with_shapes(self._shapes(connection))
        if self._copies.begin(connection, tables, position):
            # a commit is in the WAL before other sessions see it, for a long time if it waits for a standby: a copy
            # that starts at once could miss rows whose changes the stream has already passed
            OpenTransactions.with_ids(connection).wait(connection, self._settings, self._errors)
        if position.everything and not start.lsn:
            # transactions that created tables were open until the slot was there: the stream begins behind them
            self._copies.begin(connection, self._session.tables(connection), position)
        self._is_ready = True
        return position

    def _stale(
        self, connection: Connection, start: PostgresPosition, look: SlotLook, tables: Sequence[TableName]
    ) -> set[str]:
        """Return the copied tables whose changes since their copy are not all in the stream."""
        if not start.lsn:
            # copied by ``initial_only``: nothing kept the changes since then
            return set(start.copied)
        self._require_kept(look, start)
        # dropped and created again, or left out of the setting ``tables`` meanwhile
        gone = {*map(str, self._publication.unpublished(connection, tables))} | (
            start.copied.keys() - {*map(str, tables)}
        )
        return start.copied.keys() & (gone | self._recreated(connection, start, tables))

    def _recreated(self, connection: Connection, start: PostgresPosition, tables: Sequence[TableName]) -> set[str]:
        """Return the tables that are other ones than those copied, and whose first rows the stream may lack."""
        listed = {str(table) for table in self._publication.listed(connection).intersection(tables)}
        oids = self._oids(connection, tables, start)
        return {table for table in listed & oids.keys() if start.oids.get(table, oids[table]) != oids[table]}

    def _oids(
        self, connection: Connection, tables: Sequence[TableName], position: PostgresPosition
    ) -> Mapping[str, str]:
        """Return the OIDs of the tables that were copied completely."""
        return {str(table): oid_of(connection, table) for table in tables if position.is_copied(str(table))}

    def _shapes(self, connection: Connection) -> Mapping[str, str]:
        if self._settings.on_schema_change != "stop":
            return {}
        return published_shapes(connection, self._settings.publication)

    def _require_kept(self, look: SlotLook, position: PostgresPosition) -> None:
        """Raise ``FatalError`` if the server no longer has all changes from a position on."""
        lsn = position.point.lsn
        if not look.exists:
            raise self._errors.slot_missing()
        if look.is_lost:
            raise self._errors.slot_lost()
        if look.flushed < lsn and not look.is_standby:
            raise self._errors.went_back(format_lsn(look.flushed), format_lsn(lsn))
        self._timelines.require(look.timeline, position)
        # only durable positions are confirmed by us, so another reader has advanced the slot
        if look.confirmed > lsn:
            raise self._errors.slot_moved(format_lsn(look.confirmed), format_lsn(lsn))

    def _streamed(
        self, connection: Connection, start: PostgresPosition, look: SlotLook, bounds: tuple[Limit, Any]
    ) -> PostgresPosition:
        limit, horizon = bounds
        lsn = start.point.lsn
        self._require_kept(look, start)
        there = look.flushed if horizon is None else min(look.flushed, parse_lsn(horizon["lsn"]))
        if look.readable < there:
            there = self._standbys.readable(connection, lsn, horizon)
        # a drain ends as soon as it can
        rests = self._pace.is_resting(look, lsn, there, limit.bytes) and horizon is None
        if lsn < start.renewed_at < there:
            there = start.renewed_at
        elif there <= lsn or rests or self._is_quiet(connection, lsn, there):
            return start
        self._moved = time.monotonic()
        self._pace.begin()
        end = min(there, self._pace.end(look, lsn, limit.bytes))
        return start.at(end).on(look.timeline).settled().as_of(self._times.before(end))

    def _is_quiet(self, connection: Connection, lsn: int, upto: int) -> bool:
        """Return whether the WAL up to ``upto`` has no relevant change and the position need not move yet for the
        heartbeat."""
        # a longer range is read without this check, because checking decodes it just as reading does
        if upto - lsn >= _QUIET_BYTES or 0 < self._settings.heartbeat <= time.monotonic() - self._moved:
            return False
        if upto > self._looked:
            self._pace.begin()
            self._confirm(connection)
            if self._slot.has_changes(connection, upto):
                return False
            self._looked = upto
        return True

    # -- ranges -------------------------------------------------------------------------------------------------

    def split(self, start: PostgresPosition, end: PostgresPosition, n: int) -> list[Split]:
        """Return splits of the tables for all tasks, or the range of the stream for one task."""
        splits = self._session.translated(lambda: self._copies.split(start, end, n))
        begin = start.point
        if not start.lsn and end.lsn:
            # read from the start of the slot, which has not moved yet
            begin = StreamPoint(self._session.ask(self._slot.look).confirmed)
        if end.point > begin:
            ordinal = sum(split.records or 0 for split in splits)
            at = msgspec.structs.replace(end, lsn=format_lsn(begin.lsn), index=begin.changes)
            detail, size = StreamDetail(end.point, self._acked), end.point.lsn - begin.lsn
            # a step may be cut in the range, which the server's new timeline has as well
            begin_at = (start if start.lsn else at).on(end.timeline)
            splits.append(Split(begin_at.to_json(), ordinal, bytes=size, detail=as_json(detail)))
        return splits

    def gives_up(self, start: PostgresPosition, end: PostgresPosition) -> bool:
        """Return whether the range copies rows under a snapshot that is gone; it is then planned again."""
        return self._copies.gives_up(start, end)

    def verify(self, start: PostgresPosition, end: PostgresPosition) -> None:
        """Raise ``FatalError`` if the server no longer has the changes of a range."""
        if not end.lsn:
            return
        look = self._session.ask(self._slot.look)
        if look.is_other(end.server):
            raise self._errors.other_server()
        self._require_kept(look, start if start.lsn else end)

    # -- acks ---------------------------------------------------------------------------------------------------

    def ack(self, upto: PostgresPosition) -> None:
        """Confirm a durable position, so that the server can discard WAL. Lost acks are repeated, and reading tasks
        confirm as well."""
        if upto.lsn and not self._is_ours:
            # an LSN means something else on another cluster: confirming it there would lose another pipeline's changes
            self._session.ask(lambda connection: self._require_ours(connection, upto))
            self._is_ours = True
        self._copies.release(upto)
        self._acked = max(self._acked, upto.point.lsn)
        # confirming makes the server decode as well
        if self._acked > self._confirmed and time.monotonic() - self._confirming > max(_CONFIRM, self._pace.rest):
            self._session.ask(self._confirm)

    def _require_ours(self, connection: Connection, position: PostgresPosition) -> None:
        look = self._slot.look(connection)
        if look.is_other(position.server):
            raise self._errors.other_server()
        self._timelines.require(look.timeline, position)

    def _confirm(self, connection: Connection) -> None:
        if self._acked <= self._confirmed:
            return
        self._confirming = time.monotonic()
        look = self._slot.look(connection)
        is_ahead = look.exists and not look.is_lost and look.confirmed < self._acked <= look.readable
        if is_ahead and self._slot.confirm(connection, self._acked):
            self._confirmed = self._acked

    def close(self) -> None:
        """Confirm the last ack, and close the connection of the copies."""
        try:
            # a failed confirmation is repeated at the next start
            with suppress(ConduitError):
                if self._acked > self._confirmed:
                    self._session.ask(self._confirm)
        finally:
            self._copies.close()
            self._forget()

    # -- deletion of the pipeline --------------------------------------------------------------------------------

    def leftovers(self) -> Sequence[Leftover]:
        """Return the slot, and the publication if this source created it."""
        if not self._settings.auto_cleanup or self._settings.snapshot_mode == "initial_only":
            return ()
        return self._session.ask(self._slot.leftovers)

    def remove_leftovers(self) -> None:
        """Drop them, the slot first: without it the publication serves nobody."""
        if self.leftovers():
            self._session.ask(self._slot.drop)

    # -- lag and statistics -------------------------------------------------------------------------------------

    def lag(self, position: PostgresPosition) -> int | None:
        """Return the bytes of WAL after a position, including those of other tables; 0 if none of them is relevant.

        None before the slot exists. If only other tables are written to, their WAL counts from 16 MiB on, and any of
        it while the server would decode much to tell them apart.
        """
        if not position.lsn:
            return None
        lsn = position.point.lsn
        return self._session.ask(lambda connection: self._lag(connection, self._slot.look(connection), lsn))

    def lag_seconds(self, position: PostgresPosition) -> float | None:
        """Return the seconds since the first change after a position was committed; 0 if no relevant change waits.

        While a task reads the slot, or the server would decode much to tell, returns the age of the position: all
        commits up to that time lie before it.
        """
        return self._session.ask(lambda connection: self._lag_seconds(connection, position)) if position.lsn else None

    def _lag_seconds(self, connection: Connection, position: PostgresPosition) -> float | None:
        look, since = self._slot.look(connection), position.at_ms / 1000
        if look.flushed <= position.point.lsn:
            return 0.0
        is_told = look.exists and not look.is_lost and not is_dear(look, look.readable)
        if is_told and look.readable > position.point.lsn:
            # or a delivered change would be the oldest one in the slot
            self._confirm(connection)
            with suppress(psycopg.errors.ObjectInUse):
                first = self._slot.first_waiting(connection, look.readable)
                if first is None and look.readable == look.flushed:
                    return 0.0
                # it may be delivered but not confirmed yet
                since = first.committed_ns / 1e9 if first and first.lsn >= position.point.lsn else since
        return max(0.0, look.at - since) if since else None

    def _lag(self, connection: Connection, look: SlotLook, lsn: int) -> int:
        behind = max(0, look.flushed - lsn)
        is_short = 0 < behind < _QUIET_BYTES and look.exists and not look.is_lost
        is_short = is_short and look.confirmed <= lsn < look.readable and not is_dear(look, look.readable)
        if is_short and not self._slot.has_changes(connection, look.readable):
            return look.flushed - look.readable
        return behind
