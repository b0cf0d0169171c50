"""The replication slot and its publication: made, looked at and moved on by the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import psycopg
from psycopg import sql

from conduit_dagster.connectors.postgres.cluster_identity import ClusterIdentity, is_other
from conduit_dagster.connectors.postgres.connection import Connection
from conduit_dagster.connectors.postgres.pgoutput import Begin, read_begin
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.source_errors import SourceErrors
from conduit_dagster.connectors.postgres.source_position import format_lsn
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings

_MARK = "conduit_dagster: "
"""Beginning of the comment on a publication that a pipeline made; its owner's id follows."""

_LOOK = """
    SELECT pg_wal_lsn_diff(
               CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END, '0/0'),
           s.slot_name IS NOT NULL, pg_wal_lsn_diff(s.confirmed_flush_lsn, '0/0'), s.wal_status, s.plugin,
           s.database = current_database(), extract(epoch FROM statement_timestamp())
    FROM (SELECT) one LEFT JOIN pg_replication_slots s ON s.slot_name = %s
"""
_PUBLICATION = """
    SELECT p.puballtables, coalesce(obj_description(p.oid, 'pg_publication'), ''),
           p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate
    FROM pg_publication p WHERE p.pubname = %s
"""
_PUBLISHED = "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s"
_PEEK = """
    SELECT EXISTS (SELECT FROM pg_logical_slot_peek_binary_changes(
        %s, %s, 1, 'proto_version', '2', 'publication_names', %s))
"""
_FIRST = """
    SELECT data FROM pg_logical_slot_peek_binary_changes(
        %s, %s, 1, 'proto_version', '2', 'publication_names', %s) LIMIT 1
"""
_ADVANCE = "SELECT pg_replication_slot_advance(%s, %s)"


class SlotLook(NamedTuple):
    """State of the server and of the slot."""

    server: str
    """The cluster's system identifier, or ``unknown``."""
    flushed: int
    """LSN up to which the WAL is durable there: what can be read."""
    exists: bool
    confirmed: int
    """LSN up to which the server may have forgotten changes."""
    is_lost: bool
    at: float
    """The server's time before ``flushed`` was read, in seconds since 1970."""

    def is_other(self, server: str) -> bool:
        """Return whether this is certainly not the server that a position names."""
        return is_other(self.server, server)


class MadeSlot(NamedTuple):
    """A slot that is there."""

    complete_from: int
    """LSN: what commits from there on is sent."""
    is_new: bool


class ReplicationSlot:
    """One slot, and the publication that says what is sent through it."""

    def __init__(self, settings: PostgresSourceSettings, errors: SourceErrors, owner: str) -> None:
        self._settings = settings
        self._errors = errors
        self._owner = owner
        self._identity = ClusterIdentity()

    def look(self, connection: Connection) -> SlotLook:
        """Return the state of server and slot. Raises for a slot of another plugin or database."""
        row = connection.execute(_LOOK, (self._settings.slot,)).fetchone()
        assert row is not None
        flushed, exists, confirmed, status, plugin, is_here, at = row
        if exists and (plugin != "pgoutput" or not is_here):
            message = f"the replication slot {self._settings.slot} is of the plugin {plugin}, or of another database"
            raise self._errors.unfit("postgres.slot_unusable", message, "name another one with logrepl.slotName")
        server, is_lost = self._identity.of(connection), status == "lost"
        return SlotLook(server, int(flushed), exists, int(confirmed or 0), is_lost, float(at))

    def _publication(self, connection: Connection) -> tuple[bool, str, bool] | None:
        """Return whether it is for all tables, its comment, and whether it has all kinds of changes."""
        row = connection.execute(_PUBLICATION, (self._settings.publication,)).fetchone()
        return None if row is None else (row[0], row[1], row[2])

    # -- set up -------------------------------------------------------------------------------------------------

    def publish(self, connection: Connection, tables: Sequence[TableName]) -> list[TableName]:
        """Make the publication, or add what it lacks; return what was added. Raises where it is not ours to change."""
        name = self._settings.publication
        found = self._publication(connection)
        if found is None:
            self._create(connection, tables)
            return []
        if not found[2]:
            message = f"the publication {name} leaves out some kinds of changes"
            fix = f"ALTER PUBLICATION \"{name}\" SET (publish = 'insert, update, delete, truncate')"
            raise self._errors.unfit("postgres.publication", message, fix)
        known = {TableName(*row) for row in connection.execute(_PUBLISHED, (name,))}
        missing = [table for table in tables if table not in known]
        if missing:
            self._extend(connection, missing, found[1])
        return missing

    def is_open(self, connection: Connection) -> bool:
        """Return whether tables that will be created are published too, as ``FOR ALL TABLES`` says."""
        found = self._publication(connection)
        return bool(found and found[0])

    def require_published(self, connection: Connection, tables: Sequence[TableName]) -> None:
        """Raise ``FatalError`` if a publication of others lacks tables; one that is not there yet will be made."""
        found = self._publication(connection)
        if found is not None and found[1] != _MARK + self._owner:
            self.publish(connection, tables)

    def _create(self, connection: Connection, tables: Sequence[TableName]) -> None:
        name = sql.Identifier(self._settings.publication)
        # a partitioned table is one collection
        statement = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)")
        with connection.transaction():
            connection.execute(statement.format(name, _list(tables)))
            comment = sql.Literal(_MARK + self._owner)
            connection.execute(sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(name, comment))

    def _extend(self, connection: Connection, missing: Sequence[TableName], comment: str) -> None:
        name = sql.Identifier(self._settings.publication)
        statement = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(name, _list(missing))
        if comment != _MARK + self._owner:
            message = f"the publication {self._settings.publication} lacks {', '.join(map(str, missing))}"
            raise self._errors.unfit("postgres.publication", message, statement.as_string(connection))
        connection.execute(statement)

    def create(self, connection: Connection) -> MadeSlot:
        """Make the slot unless it is there. Waits until the transactions that are open now have ended."""
        found = self._publication(connection)
        owner = found[1].removeprefix(_MARK) if found and found[1].startswith(_MARK) else self._owner
        if owner != self._owner:
            raise self._errors.slot_taken(owner)
        look = self.look(connection)
        if look.is_lost:
            raise self._errors.slot_lost()
        if not look.exists:
            self.require_logical(connection)
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self._settings.slot,))
            return MadeSlot(self.look(connection).confirmed, is_new=True)
        return MadeSlot(look.confirmed, is_new=False)

    def require_logical(self, connection: Connection) -> None:
        """Raise ``FatalError`` if the server writes no logical WAL."""
        row = connection.execute("SHOW wal_level").fetchone()
        if row is None or row[0] != "logical":
            message = f"wal_level is {row and row[0]}, and changes are read with logical only"
            fix = "ALTER SYSTEM SET wal_level = logical; then restart the server"
            raise self._errors.unfit("postgres.wal_level", message, fix)

    # -- what is there ------------------------------------------------------------------------------------------

    def first_waiting(self, connection: Connection, upto: int) -> Begin | None:
        """Return the first transaction with changes of ours, from what the server was told to forget on.

        None if there is none before ``upto``, or while somebody reads the slot.
        """
        name = '"' + self._settings.publication.replace('"', '""') + '"'
        try:
            row = connection.execute(_FIRST, (self._settings.slot, format_lsn(upto), name)).fetchone()
        except psycopg.errors.ObjectInUse:
            return None
        return None if row is None else read_begin(bytes(row[0]))

    def has_changes(self, connection: Connection, upto: int) -> bool:
        """Return whether there may be changes of ours that commit before ``upto``; True while somebody reads it."""
        name = '"' + self._settings.publication.replace('"', '""') + '"'
        try:
            row = connection.execute(_PEEK, (self._settings.slot, format_lsn(upto), name)).fetchone()
        except psycopg.errors.ObjectInUse:
            return True
        return bool(row and row[0])

    def confirm(self, connection: Connection, upto: int) -> bool:
        """Let the server forget what commits before ``upto``; False, with nothing done, while somebody reads it."""
        try:
            connection.execute(_ADVANCE, (self._settings.slot, format_lsn(upto)))
        except psycopg.errors.ObjectInUse:
            return False
        return True


def _list(tables: Sequence[TableName]) -> sql.Composed:
    return sql.SQL(", ").join(table.quoted for table in tables)
