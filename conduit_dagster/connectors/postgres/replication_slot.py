"""The replication slot: created, inspected and advanced by the driver."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import psycopg

from conduit_dagster.connectors.postgres.connection import Connection, value_of
from conduit_dagster.connectors.postgres.pgoutput import Begin, read_begin, require_published
from conduit_dagster.connectors.postgres.publication import Publication
from conduit_dagster.connectors.postgres.settings import in_quotes, typed_name
from conduit_dagster.connectors.postgres.source_errors import SourceErrors, is_unreadable
from conduit_dagster.connectors.postgres.source_position import format_lsn
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings
from conduit_dagster.connectors.postgres.wal_history import UNKNOWN_TIMELINE, ClusterIdentity, is_other
from conduit_dagster.sdk import Leftover

_LOOK = """
    SELECT pg_wal_lsn_diff(
               CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END, '0/0'),
           s.slot_name IS NOT NULL, pg_wal_lsn_diff(s.confirmed_flush_lsn, '0/0'),
           pg_wal_lsn_diff(coalesce(s.restart_lsn, s.confirmed_flush_lsn), '0/0'), s.wal_status, s.plugin,
           s.database = current_database(), extract(epoch FROM statement_timestamp()), pg_is_in_recovery(),
           CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END,
           pg_is_in_recovery() AND coalesce((to_jsonb(s) ->> 'synced')::boolean, false),
           coalesce((to_jsonb(s) ->> 'two_phase')::boolean, false),
           CASE WHEN NOT pg_is_in_recovery() AND (to_jsonb(s) ->> 'failover')::boolean THEN (
               SELECT min(coalesce(pg_wal_lsn_diff(p.restart_lsn, '0/0'), 0))
               FROM regexp_split_to_table(current_setting('synchronized_standby_slots', true), '[ ,"]+') AS name
               LEFT JOIN pg_replication_slots p ON p.slot_name = name WHERE name <> '') END
    FROM (SELECT) one LEFT JOIN pg_replication_slots s ON s.slot_name = %s
"""
_DECODES_ON_STANDBY = 160_000
_FIRST = """
    SELECT data FROM pg_logical_slot_peek_binary_changes(
        %s, %s, 1, 'proto_version', '2', 'publication_names', %s) LIMIT 1
"""
_MAY_REPLICATE = "SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user"
_ROOM = """
    SELECT current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots),
           current_setting('max_wal_senders')::int - (SELECT count(*) FROM pg_stat_replication)
"""
_ADVANCE = "SELECT pg_replication_slot_advance(%s, %s)"


class SlotLook(NamedTuple):
    """State of the server and of the slot."""

    server: str
    """The cluster's system identifier, or ``unknown``."""
    flushed: int
    """LSN up to which the server's WAL is durable and can be read."""
    exists: bool
    confirmed: int
    """LSN up to which the server may have discarded changes."""
    restart: int
    """LSN from which the server decodes, for each read: the beginning of the oldest transaction that was open."""
    is_lost: bool
    at: float
    """The server's time before ``flushed`` was read, in seconds since 1970."""
    is_standby: bool
    """Whether the server is in recovery: its WAL may end before a position for a moment."""
    timeline: int
    """The timeline of new WAL, or ``UNKNOWN_TIMELINE``."""
    awaited: int | None
    """LSN up to which all standbys have the WAL that the slot waits for; None: it waits for none."""

    @property
    def readable(self) -> int:
        """LSN up to which the slot can be read without waiting."""
        return self.flushed if self.awaited is None else min(self.flushed, self.awaited)

    def is_other(self, server: str) -> bool:
        """Return whether this is certainly another server than that of a position."""
        return is_other(self.server, server)


class ReplicationSlot:
    """The slot of one source. It belongs to whoever created its publication."""

    def __init__(self, settings: PostgresSourceSettings, errors: SourceErrors, publication: Publication) -> None:
        self._settings = settings
        self._errors = errors
        self._publication = publication
        self._identity = ClusterIdentity()

    def look(self, connection: Connection) -> SlotLook:
        """Return the state of server and slot. Raises for a slot of another plugin or database or with ``two_phase``,
        and for a copy that a standby keeps of the primary's."""
        row = connection.execute(_LOOK, (self._settings.slot,)).fetchone()
        assert row is not None
        flushed, exists, confirmed, restart, status, plugin, is_here, at, is_standby, *more = row
        timeline, is_copy, is_early, awaited = more
        if exists and (plugin != "pgoutput" or not is_here):
            message = f"the replication slot {self._settings.slot} is of the plugin {plugin}, or of another database"
            raise self._errors.fatal(message, "postgres.slot_unusable", "name another one with logrepl.slotName")
        if is_early:
            message = f"the replication slot {self._settings.slot} has two_phase: it sends a prepared transaction "
            message += "whether it is committed later or not"
            raise self._errors.fatal(message, "postgres.slot_unusable", "name another one with logrepl.slotName")
        if is_copy:
            raise self._errors.slot_synchronized()
        server, is_lost = self._identity.of(connection), status == "lost"
        number = UNKNOWN_TIMELINE if timeline is None else int(timeline, 16)
        held = None if awaited is None else int(awaited)
        slot = int(flushed), exists, int(confirmed or 0), int(restart or 0)
        return SlotLook(server, *slot, is_lost, float(at), is_standby, number, held)

    # -- set up -------------------------------------------------------------------------------------------------

    def create(self, connection: Connection) -> int:
        """Create the slot if it is missing, which waits until all open transactions have ended.

        Returns the LSN from which on all commits are sent.
        """
        if other := self._publication.other_owner(connection):
            raise self._errors.slot_taken(other)
        look = self.look(connection)
        if look.is_lost:
            raise self._errors.slot_lost()
        if not look.exists:
            self.require_logical(connection, look)
            with self._within_limit(connection) if look.is_standby else nullcontext():
                connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self._settings.slot,))
            look = self.look(connection)
        return look.confirmed

    @contextmanager
    def _within_limit(self, connection: Connection) -> Generator[None]:
        """Wait no longer than ``lock-timeout``: a standby waits for what its primary logs, not for a lock, and without
        an end if that writes nothing."""
        limit = self._settings.lock_timeout
        try:
            with connection.transaction():
                connection.execute("SELECT set_config('statement_timeout', %s, true)", (f"{round(limit * 1000)}ms",))
                yield
        except psycopg.errors.QueryCanceled:
            message = f"the primary has not told this standby its open transactions for {limit:.0f} s"
            fix = "on the primary: SELECT pg_log_standby_snapshot(), and end what is open; or raise lock-timeout"
            raise self._errors.outage(message, "postgres.busy", fix) from None

    def require_logical(self, connection: Connection, look: SlotLook) -> None:
        """Raise ``FatalError`` if the server writes no logical WAL, or is a standby that can't read it."""
        if look.is_standby and connection.info.server_version < _DECODES_ON_STANDBY:
            raise self._errors.standby("before PostgreSQL 16 a standby can't read changes")
        if (level := value_of(connection, "SHOW wal_level")) != "logical":
            message = f"wal_level is {level}, and changes are read with logical only"
            fix = "ALTER SYSTEM SET wal_level = logical; then restart the server"
            raise self._errors.fatal(message, "postgres.wal_level", fix)

    def require_rights(self, connection: Connection, user: str, has_slot: bool) -> None:
        """Raise ``FatalError`` if the user may not replicate, or the server has no slot or sender left."""
        if not value_of(connection, _MAY_REPLICATE):
            message = f"{user} may not replicate; cdcMode: long_polling needs no such right, but finds no deletes"
            fix = f"as a superuser: ALTER ROLE {typed_name(user)} REPLICATION"
            raise self._errors.fatal(message, "postgres.no_privilege", fix)
        row = connection.execute(_ROOM).fetchone()
        assert row is not None
        for left, setting in zip(row, ("max_replication_slots", "max_wal_senders"), strict=True):
            if left <= 0 and not (has_slot and setting == "max_replication_slots"):
                fix = (
                    f"ALTER SYSTEM SET {setting} to a higher number, then restart the server; or drop what nobody reads"
                )
                raise self._errors.fatal(f"{setting} is used up", "postgres.no_slot_left", fix)

    # -- removal ------------------------------------------------------------------------------------------------

    def leftovers(self, connection: Connection) -> list[Leftover]:
        """Return the slot, unless another pipeline's publication belongs to it, and the publication that this one
        created."""
        look = self.look(connection)
        if self._publication.other_owner(connection):
            return []
        found: list[Leftover] = []
        if look.exists:
            waits = not look.is_lost and (look.readable < look.flushed or self._waits(connection, look.flushed))
            loses = f"changes that wait in the replication slot {self._settings.slot}" if waits else ""
            found.append(Leftover(f"replication slot {self._settings.slot}", loses))
        if self._publication.is_own(connection):
            found.append(Leftover(f"publication {self._settings.publication}"))
        return found

    def _waits(self, connection: Connection, upto: int) -> bool:
        try:
            return self.has_changes(connection, upto)
        except psycopg.errors.UndefinedObject:
            return True  # without its publication nobody can tell

    def drop(self, connection: Connection) -> None:
        """Drop the slot if it exists, and the publication if this source created it. Raises ``psycopg.Error``."""
        if self.look(connection).exists:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (self._settings.slot,))
        self._publication.drop(connection)

    # -- slot state ---------------------------------------------------------------------------------------------

    def first_waiting(self, connection: Connection, upto: int) -> Begin | None:
        """Return the oldest transaction after the confirmed LSN with relevant changes; None if there is none before
        ``upto``. Raises ``psycopg.errors.ObjectInUse`` while another session reads the slot, and
        ``psycopg.errors.UndefinedObject`` if the publication was missing when changes were made."""
        name = in_quotes(self._settings.publication)
        notices: list[psycopg.errors.Diagnostic] = []
        connection.add_notice_handler(notices.append)
        try:
            data = value_of(connection, _FIRST, (self._settings.slot, format_lsn(upto), name))
        except psycopg.Error as error:
            if is_unreadable(error):
                raise self._errors.unreadable_change(error) from None
            raise
        finally:
            connection.remove_notice_handler(notices.append)
        for notice in notices:
            require_published(notice.sqlstate, notice.message_primary)
        return None if data is None else read_begin(bytes(data))

    def has_changes(self, connection: Connection, upto: int) -> bool:
        """Return whether relevant changes may commit before ``upto``; True while another session reads the slot."""
        try:
            return self.first_waiting(connection, upto) is not None
        except psycopg.errors.ObjectInUse:
            return True

    def confirm(self, connection: Connection, upto: int) -> bool:
        """Confirm all commits before ``upto``; return False, with nothing done, while another session reads the
        slot."""
        try:
            connection.execute(_ADVANCE, (self._settings.slot, format_lsn(upto)))
        except psycopg.errors.ObjectInUse:
            return False
        return True
