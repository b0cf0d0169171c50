"""Errors of the ``postgres`` source: translation of database errors to errors with a code and a fix."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from conduit_dagster.connectors.postgres.settings import DatabaseServer, typed_name
from conduit_dagster.connectors.postgres.sqlstates import DatabaseErrors
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError

START_OVER = "conduit-dagster positions rewind PIPELINE CONNECTOR --to-start, which copies the tables again"
_POLICIES = (
    "as a superuser: ALTER ROLE {user} BYPASSRLS; a policy would hide rows from the copy, but not from the changes"
)
_RIGHTS = (
    "as a superuser: ALTER ROLE {user} REPLICATION; as the owner: GRANT USAGE ON SCHEMA … TO {user}, and GRANT SELECT "
    "ON TABLE … TO {user}"
)
_CORRECTED = (
    "correct the row: a text that is not in the database's encoding, or a row beyond 1 GB as text, where a byte of "
    "bytea takes two"
)
_FILTER = "correct the publication's row filter, if it has one, or the row for which it fails"
_NOT_SENT = (psycopg.errors.CharacterNotInRepertoire, psycopg.errors.UntranslatableCharacter)


def is_unreadable(error: psycopg.Error) -> bool:
    """Return whether the error is about a value that the server can't send. One that is too large is an internal error
    in some places of the server."""
    is_too_large = isinstance(error, psycopg.errors.InternalError_) and "memory alloc request size" in _said(error)
    return is_too_large or isinstance(error, psycopg.DataError | psycopg.errors.ProgramLimitExceeded)


def _correction(error: psycopg.Error) -> str:
    # of other errors in data the server has but one source: an expression of the publication
    is_filter = isinstance(error, psycopg.DataError) and not isinstance(error, _NOT_SENT)
    return _FILTER if is_filter else _CORRECTED


class SourceErrors:
    """Translation of one source's database errors into errors that the engine handles, without secrets."""

    def __init__(self, server: DatabaseServer, slot: str) -> None:
        self._server = server
        self._slot = slot
        self._general = DatabaseErrors(server, "")

    def connecting(self, error: psycopg.Error) -> ConduitError:
        """Return the error of a failed connection."""
        if "REPLICATION attribute" in str(error) or "must be superuser or replication role" in str(error):
            return self.fatal(_said(error), "postgres.no_privilege", _RIGHTS.format(user=typed_name(self._server.user)))
        if "unsupported startup parameter" in str(error):
            fix = "name the server itself in the setting url: a pooler such as PgBouncer passes no replication"
            return self.fatal(f"can't connect: {_said(error)}", "postgres.no_replication", fix)
        return self._general.connecting(error)

    def verdict(self, error: psycopg.Error) -> Exception:
        """Return the error of a failed statement. An unknown error is transient, because nothing was lost."""
        state = error.sqlstate or ""
        if state == "42501":
            if "row-level security" in _said(error):
                return self.hides_rows(_said(error))
            fix = _RIGHTS.format(user=typed_name(self._server.user))
            return self.fatal(_said(error), "postgres.no_privilege", fix)
        if state == "42704":
            return self._no_publication(error) if "ubli" in _said(error) else self.slot_missing()
        if state[:3] == "57P":
            return self.outage(_said(error), "postgres.unreachable", "is the server up? nothing was lost")
        if state == "55000":
            fix = f"SELECT * FROM pg_replication_slots says more; if {self._slot} can't be read any more, drop it, then"
            return self.fatal(_said(error), "postgres.slot_unusable", f"{fix} {START_OVER}")
        if state == "55006":
            return self.outage(
                _said(error), "postgres.slot_active", "end the other reader, or give each a slot of its own"
            )
        if state == "53400":
            fix = "raise max_replication_slots, or drop a slot that nobody reads: SELECT pg_drop_replication_slot('…')"
            return self.fatal(_said(error), "postgres.no_slot_left", fix)
        if is_unreadable(error):
            return self.unreadable(error, error.diag.context or "")
        found = self._general.verdict(error)
        if isinstance(found, ConduitError):
            return found
        return self.outage(_said(error), "postgres.server", "look at the server's log; nothing was lost")

    def hides_rows(self, message: str) -> ConduitError:
        """Return the error for a table with policies that apply to the user."""
        fix = _POLICIES.format(user=typed_name(self._server.user))
        return self.fatal(message, "postgres.no_privilege", fix)

    def slot_missing(self) -> ConduitError:
        """Return the error for a missing slot, for example after a failover to a server without it."""
        message = f"the replication slot {self._slot} is gone, and with it the changes since the last position"
        return self.fatal(message, "postgres.slot_missing", START_OVER)

    def slot_lost(self) -> ConduitError:
        """Return the error for a slot invalidated by the server."""
        why = "it kept more WAL, or was idle for longer, than is allowed"
        message = f"the server has given up the replication slot {self._slot}: {why}"
        raised = "raise max_slot_wal_keep_size or idle_replication_slot_timeout"
        fix = f"SELECT pg_drop_replication_slot('{self._slot}'); {raised}; then {START_OVER}"
        return self.fatal(message, "postgres.slot_lost", fix)

    def slot_synchronized(self) -> ConduitError:
        """Return the error for a standby that keeps its copy of the slot in step with the primary's."""
        message = f"the server is a standby, which keeps the replication slot {self._slot} in step with the primary's"
        fix = "read the primary: correct the url; after a failover wait until this server is promoted; nothing was lost"
        return self.outage(message, "postgres.slot_active", fix)

    def standbys_behind(self, readable: str, upto: str) -> ConduitError:
        """Return the error for a slot that waits for standbys."""
        message = f"the replication slot {self._slot} waits for standbys: one has the WAL up to {readable}, not {upto}"
        fix = "bring back the standbys whose slots synchronized_standby_slots names, or take them out; nothing was lost"
        return self.outage(message, "postgres.busy", fix)

    def slot_moved(self, confirmed: str, position: str) -> ConduitError:
        """Return the error for a slot that another reader has advanced."""
        message = f"the replication slot {self._slot} is at {confirmed}, beyond our position {position}"
        fix = f"give each reader a slot of its own (logrepl.slotName); changes are missing: {START_OVER}"
        return self.fatal(message, "postgres.slot_moved", fix)

    def went_back(self, flushed: str, position: str) -> ConduitError:
        """Return the error for a server that was restored, or a standby that was promoted, without the latest WAL."""
        message = f"the server's WAL ends at {flushed}, before our position {position}: it has lost what was read"
        return self.fatal(message, "postgres.went_back", START_OVER)

    def left_timeline(self, timeline: int, left: str, position: str) -> ConduitError:
        """Return the error for a server that was restored, or promoted, to a point before what was read."""
        point = f"left ours at {left}, before" if left else "does not descend from that of"
        message = f"the server's timeline {timeline} {point} our position {position}: it has lost what was read"
        return self.fatal(message, "postgres.went_back", START_OVER)

    def slot_taken(self, owner: str) -> ConduitError:
        """Return the error for a slot created by another pipeline."""
        message = f"the replication slot {self._slot} belongs to {owner}"
        fix = (
            "give this source its own logrepl.slotName and logrepl.publicationName; or, if that one is gone for good, "
        )
        fix += "drop its publication and slot (DROP PUBLICATION, pg_drop_replication_slot)"
        return self.fatal(message, "postgres.slot_taken", fix)

    def other_server(self) -> ConduitError:
        """Return the error for another server than the one read so far."""
        message = (
            "this is a different database cluster from the one read so far: positions in its log mean something else"
        )
        return self.fatal(message, "postgres.other_server", f"correct the url; or {START_OVER}")

    def schema_changed(self, table: str, columns: Sequence[str]) -> ConduitError:
        """Return the error for a table whose columns or types have changed."""
        message = (
            f"a change of {table} has other columns, or other types of them, than when onSchemaChange was set to stop:"
            f" {', '.join(columns)}"
        )
        fix = "bring the destinations up to it; then run with onSchemaChange: continue until the source has caught up"
        return self.fatal(message, "postgres.schema_changed", fix)

    def standby(self, why: str = "it does not know the transactions that may still add earlier rows") -> ConduitError:
        """Return the error for reading a standby where only the primary will do."""
        return self.fatal(f"this server is a standby: {why}", "postgres.standby", "read the primary: correct the url")

    def order_changed(self, table: str) -> ConduitError:
        """Return the error for a partly read table whose order has changed."""
        message = (
            f"{table} was recreated, or has another key, one of another type, or one whose enum has other labels, "
            "since part of it was read"
        )
        return self.fatal(message, "postgres.order_changed", START_OVER)

    def no_table(self, message: str) -> ConduitError:
        """Return the error for a name that is not that of a table."""
        return self.fatal(message, "postgres.no_table", "create it, or correct the setting tables")

    def not_logged(self, tables: Sequence[str]) -> ConduitError:
        """Return the error for unlogged tables, which can't be published."""
        message = f"changes of an unlogged table are not in the WAL: {', '.join(tables)}"
        fix = "ALTER TABLE … SET LOGGED; or read it with snapshotMode: initial_only, or cdcMode: long_polling"
        return self.fatal(message, "postgres.no_table", fix)

    def sent_as_root(self, publication: str, partitions: Sequence[str]) -> ConduitError:
        """Return the error for partitions whose changes a publication of others sends as those of their table."""
        message = f"the publication {publication} sends changes of {', '.join(partitions)} as those of the whole table"
        fix = "name that table in the setting tables; or give this source a publication of its own"
        return self.fatal(message, "postgres.publication", f"{fix} (logrepl.publicationName)")

    def partitions_not_logged(self, table: str, partitions: Sequence[str]) -> ConduitError:
        """Return the error for partitions whose rows would be copied, but not their changes."""
        message = f"changes of unlogged and foreign partitions of {table} are not in the WAL: {', '.join(partitions)}"
        fix = f"ALTER TABLE {partitions[0]} SET LOGGED, or detach it; or read it with snapshotMode: initial_only, "
        fix += "or cdcMode: long_polling"
        return self.fatal(message, "postgres.no_table", fix)

    def named_twice(self, partition: str, table: str) -> ConduitError:
        """Return the error for a partition beside the table that has its rows."""
        message = f"{partition} is a partition of {table}, which has its rows: they would come twice"
        return self.fatal(message, "postgres.named_twice", "leave one of them out of the setting tables")

    def no_identity(self, tables: Sequence[str]) -> ConduitError:
        """Return the error for tables whose updates PostgreSQL would refuse once they are published."""
        message = (
            "once it is published, PostgreSQL refuses updates and deletes of a table without a replica identity (it is "
            f"NOTHING, its index was dropped, or the primary key is deferrable): {', '.join(tables)}"
        )
        fix = "ALTER TABLE … REPLICA IDENTITY FULL, or USING INDEX …; or leave the table out of the setting tables"
        return self.fatal(message, "postgres.no_key", fix)

    def partitions_unidentified(self, table: str, partitions: Sequence[str]) -> ConduitError:
        """Return the error for partitions whose changes don't say which row of their table they are about."""
        message = (
            f"the replica identity of partitions of {table} lacks columns of its key, so updates and deletes don't say "
            f"which row they change: {', '.join(partitions)}"
        )
        fix = f"ALTER TABLE {partitions[0]} REPLICA IDENTITY FULL, or USING INDEX … with the key; and so the others"
        return self.fatal(message, "postgres.no_key", fix)

    def partitions_with_own_key(self, table: str, partitions: Sequence[str]) -> ConduitError:
        """Return the error for partitions whose updates and deletes come without a key, as their table has none."""
        message = (
            f"{table} has no key, while partitions of it have a replica identity, so updates and deletes of them don't "
            f"say which row they change: {', '.join(partitions)}"
        )
        fix = f"ALTER TABLE {table} ADD PRIMARY KEY (…); or REPLICA IDENTITY FULL for it and each of its partitions"
        return self.fatal(message, "postgres.no_key", fix)

    def key_not_sent(self, table: str, columns: Sequence[str]) -> ConduitError:
        """Return the error for a table whose changes lack columns of its key."""
        message = f"the key of {table} has columns that are not sent with changes, being generated or not published: "
        fix = "ALTER TABLE … REPLICA IDENTITY USING INDEX … of other columns; or leave the table out of the setting"
        return self.fatal(message + ", ".join(columns), "postgres.no_key", fix)

    def unreadable(self, error: psycopg.Error, where: str) -> ConduitError:
        """Return the error for a value that the server can't send. One that it can't parse may be a part of our own
        statement, such as a label that was renamed: the next start says so."""
        message = f"{_said(error)} ({where})" if where else _said(error)
        if isinstance(error, psycopg.errors.InvalidTextRepresentation):
            return self.outage(message, "postgres.server", "look at the server's log; nothing was lost")
        return self.fatal(message, "postgres.unreadable", f"{_correction(error)}, then run again; nothing was lost")

    def unreadable_change(self, error: psycopg.Error) -> ConduitError:
        """Return the error for a change that the server can't send: it stays in the WAL, whatever the row is now."""
        message = f"{_said(error)} ({error.diag.context})" if error.diag.context else _said(error)
        skipped = f"the change stays in the WAL: SELECT pg_drop_replication_slot('{self._slot}'); then {START_OVER}"
        return self.fatal(message, "postgres.unreadable", f"{_correction(error)}; {skipped}")

    def snapshot_gone(self) -> ConduitError:
        """Return the error for a copy whose snapshot ended with the connection holding it."""
        message = "the snapshot under which rows are copied is gone"
        return self.outage(message, "postgres.snapshot_gone", "nothing was lost: they are planned again")

    def _no_publication(self, error: psycopg.Error) -> ConduitError:
        """Return the error for a publication that is missing or was created after the slot."""
        fix = (
            f"make the publication before the slot: SELECT pg_drop_replication_slot('{self._slot}'); then {START_OVER}"
        )
        return self.fatal(_said(error), "postgres.publication", fix)

    def fatal(self, message: str, code: str, fix: str) -> ConduitError:
        """Return a fatal error for a server, publication or table that can't be read in its present state."""
        place = f"{self._server.place} {self._slot}"
        return FatalError(self._server.scrub(message), code=code, place=place, fix=fix)

    def outage(self, message: str, code: str, fix: str) -> ConduitError:
        """Return a transient error."""
        place = f"{self._server.place} {self._slot}"
        return TransientError(self._server.scrub(message), code=code, place=place, fix=fix)


def _said(error: psycopg.Error) -> str:
    lines = (error.diag.message_primary or str(error)).strip().splitlines()
    return lines[-1] if lines else "no reason given"
