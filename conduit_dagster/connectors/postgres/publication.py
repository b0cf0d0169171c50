"""The publication, which selects the tables whose changes the slot sends: created and watched; and its owner."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
import structlog
from psycopg import sql

from conduit_dagster.config.project import Project
from conduit_dagster.connectors.postgres.connection import Connection, exists, value_of
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.source_errors import START_OVER, SourceErrors
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings
from conduit_dagster.connectors.postgres.source_tables import divided_tables, is_partitioned, oid_of
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.sdk import ConnectorContext
from conduit_dagster.state.claim import project_id

_PUBLICATION = """
    SELECT p.puballtables, coalesce(obj_description(p.oid, 'pg_publication'), ''),
           p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate, p.pubviaroot
    FROM pg_publication p WHERE p.pubname = %s
"""
_PUBLISHED = "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s"
# one that is published with its schema, or with all tables, is published from its creation on
_LISTED = """
    SELECT n.nspname, c.relname FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
    JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE p.pubname = %s AND NOT p.puballtables
"""
_WITH_SCHEMA = "SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid"
_HAS_SCHEMAS = 150_000
"""``server_version_num`` from which a publication can have the tables of a schema."""
_MAY_PUBLISH = """
    SELECT has_database_privilege(current_database(), 'CREATE') AND NOT EXISTS (
        SELECT FROM unnest(%s::text[], %s::text[]) wanted (schema, name)
        JOIN pg_namespace n ON n.nspname = schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = name
        WHERE NOT pg_has_role(c.relowner, 'USAGE'))
"""
_MARK = "conduit_dagster: "
"""Prefix of the comment; the id of its owner follows."""
_PROJECT = " of project "
"""Before the project's id, which earlier versions left out. Ids of connectors have no blanks."""


class SlotOwner:
    """A source and its project as the owner of a slot: in the comment on the publication that it created.

    Projects may have pipelines of the same ids, such as a test and a production system with the same files. What one of
    them confirms, or drops with its pipeline, is lost to the other.
    """

    def __init__(self, context: ConnectorContext) -> None:
        self._id, self._root = context.full_id, context.root

    @lazy_property
    def _project(self) -> str:
        return project_id(Project.find(Path(self._root)).home)

    @property
    def comment(self) -> str:
        """The comment on a publication that this source creates."""
        return f"{_MARK}{self._id}{_PROJECT if self._project else ''}{self._project}"

    def is_own(self, comment: str) -> bool:
        """Return whether this source, or an earlier version of it, created the publication with this comment."""
        owner, _, project = comment.removeprefix(_MARK).partition(_PROJECT)
        return comment.startswith(_MARK) and owner == self._id and project in ("", self._project)

    def other(self, comment: str) -> str | None:
        """Return the source that created the publication with this comment; None if it is this one, or none did."""
        return None if not comment.startswith(_MARK) or self.is_own(comment) else comment.removeprefix(_MARK)


class _Properties(NamedTuple):
    is_open: bool
    """Whether it is for all tables, future ones too."""
    comment: str
    has_all_changes: bool
    has_roots: bool
    """Whether changes of partitions are sent as those of the partitioned table."""


class Publication:
    """The publication of one source, which may be another's; it need not exist."""

    def __init__(self, settings: PostgresSourceSettings, errors: SourceErrors, owner: SlotOwner) -> None:
        self._settings = settings
        self._errors = errors
        self._owner = owner

    def _found(self, connection: Connection) -> _Properties | None:
        row = connection.execute(_PUBLICATION, (self._settings.publication,)).fetchone()
        return None if row is None else _Properties(*row)

    def publish(self, connection: Connection, tables: Sequence[TableName], is_read: bool = False) -> None:
        """Create the publication, or add missing tables to it. Raises ``FatalError`` if one of others would change.

        ``is_read``: changes were read from the slot already.
        """
        name = self._settings.publication
        found = self._found(connection)
        if found is None:
            self._create(connection, tables)
            return
        if not found.has_all_changes:
            message = f"the publication {name} leaves out some kinds of changes"
            fix = f"ALTER PUBLICATION \"{name}\" SET (publish = 'insert, update, delete, truncate')"
            more = f"{fix}; what was left out meanwhile is missing: {START_OVER}" if is_read else fix
            raise self._errors.fatal(message, "postgres.publication", more)
        if missing := self._missing(connection, tables):
            self._uncover(connection, missing, found)
            self._extend(connection, self._missing(connection, tables), found)

    def leaves_out_changes(self, connection: Connection) -> bool:
        """Return whether an existing publication leaves out some kinds of changes, such as deletes."""
        found = self._found(connection)
        return found is not None and not found.has_all_changes

    def unpublished(self, connection: Connection, tables: Sequence[TableName]) -> list[TableName]:
        """Return the tables that an existing publication lacks."""
        return [] if self._found(connection) is None else self._missing(connection, tables)

    def _missing(self, connection: Connection, tables: Sequence[TableName]) -> list[TableName]:
        known = {TableName(*row) for row in connection.execute(_PUBLISHED, (self._settings.publication,))}
        return [table for table in tables if table not in known]

    def listed(self, connection: Connection) -> set[TableName]:
        """Return the tables that the publication has because it names them: such a table is not in it from its
        creation on."""
        has_schemas = connection.info.server_version >= _HAS_SCHEMAS
        query = f"{_LISTED} AND NOT EXISTS ({_WITH_SCHEMA})" if has_schemas else _LISTED
        return {TableName(*row) for row in connection.execute(query, (self._settings.publication,))}

    def is_open(self, connection: Connection) -> bool:
        """Return whether future tables are published too (``FOR ALL TABLES``)."""
        found = self._found(connection)
        return bool(found and found.is_open)

    def require_published(self, connection: Connection, tables: Sequence[TableName]) -> None:
        """Raise ``FatalError`` if a publication of others lacks tables, or a run may not create the missing one."""
        found = self._found(connection)
        if found is None:
            schemas, names = [table.schema for table in tables], [table.name for table in tables]
            if not value_of(connection, _MAY_PUBLISH, (schemas, names)):
                why = "some are another user's, or this one may not CREATE in the database"
                raise self._may_not_publish(connection, self._creation(tables), why)
        elif not self._owner.is_own(found.comment):
            self.publish(connection, tables)

    def other_owner(self, connection: Connection) -> str | None:
        """Return the source that created it; None if it is this one, or none did."""
        found = self._found(connection)
        return None if found is None else self._owner.other(found.comment)

    def is_own(self, connection: Connection) -> bool:
        """Return whether it is there, and this source created it."""
        found = self._found(connection)
        return found is not None and self._owner.is_own(found.comment)

    def drop(self, connection: Connection) -> None:
        """Drop it if this source created it. Raises ``psycopg.Error``."""
        if self.is_own(connection):
            connection.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(self._settings.publication)))

    def _creation(self, tables: Sequence[TableName]) -> sql.Composed:
        # publish_via_partition_root, because a partitioned table is one collection
        statement = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)")
        return statement.format(sql.Identifier(self._settings.publication), _list(tables))

    def _create(self, connection: Connection, tables: Sequence[TableName]) -> None:
        name, statement = sql.Identifier(self._settings.publication), self._creation(tables)
        with self._as_owner(connection, statement), connection.transaction():
            connection.execute(statement)
            comment = sql.Literal(self._owner.comment)
            connection.execute(sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(name, comment))

    @contextmanager
    def _as_owner(self, connection: Connection, statement: sql.Composed) -> Generator[None]:
        """Raise ``FatalError`` with the statement as its fix if the user does not own what it is about."""
        try:
            yield
        except psycopg.errors.InsufficientPrivilege as error:
            raise self._may_not_publish(connection, statement, error.diag.message_primary) from None

    def _may_not_publish(self, connection: Connection, statement: sql.Composed, why: str | None) -> ConduitError:
        fix = f"as a superuser, or the owner of tables and database: {statement.as_string(connection)}"
        return self._errors.fatal(f"no right to publish the tables: {why}", "postgres.no_privilege", fix)

    def _uncover(self, connection: Connection, missing: Sequence[TableName], found: _Properties) -> None:
        """Take the tables out of the publication as whose changes it sends those of missing partitions. Raise
        ``FatalError`` if it is another's."""
        roots = {table: divided_tables(connection, table) for table in missing} if found.has_roots else {}
        every = set[str]().union(*roots.values())
        covering = [table for table in sorted(self.listed(connection)) if oid_of(connection, table) in every]
        if not self._owner.is_own(found.comment):
            if covering or (found.is_open and every):
                covered = [str(table) for table in missing if roots[table]]
                raise self._errors.sent_as_root(self._settings.publication, covered)
        elif covering:
            name = sql.Identifier(self._settings.publication)
            tables = sql.SQL(", ").join(table.quoted for table in covering)
            statement = sql.SQL("ALTER PUBLICATION {} DROP TABLE {}").format(name, tables)
            with self._as_owner(connection, statement):
                connection.execute(statement)

    def _extend(self, connection: Connection, missing: Sequence[TableName], found: _Properties) -> None:
        if not missing:
            return
        name = sql.Identifier(self._settings.publication)
        statement = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(name, _list(missing))
        if not found.has_roots and any(is_partitioned(connection, table) for table in missing):
            statement = sql.SQL("ALTER PUBLICATION {} SET (publish_via_partition_root = true)").format(name)
        if not self._owner.is_own(found.comment):
            message = f"the publication {self._settings.publication} lacks {', '.join(map(str, missing))}"
            raise self._errors.fatal(message, "postgres.publication", statement.as_string(connection))
        with self._as_owner(connection, statement):
            connection.execute(statement)


def _list(tables: Sequence[TableName]) -> sql.Composed:
    # a child by INHERITS is published only if it is named itself
    return sql.SQL(", ").join(sql.SQL("ONLY {}").format(table.quoted) for table in tables)


_SECONDS = 10.0
"""Seconds between two looks."""

log = structlog.get_logger("conduit.postgres")


class PublicationWatch:
    """Looks now and then whether all tables of a run are still published, as they are when it begins.

    Changes of a table that leaves the publication are missing in the stream from then on.
    """

    def __init__(self, publication: Publication, copies: bool) -> None:
        """``copies``: such tables are copied again."""
        self._publication, self._after = publication, ", copies follow" if copies else ""
        self._tables: Sequence[TableName] = ()
        self._looked = 0.0

    def begin(self, tables: Sequence[TableName]) -> None:
        """Note the tables, all of which are published now."""
        self._tables, self._looked = tables, time.monotonic()

    def has_lost(self, connection: Connection) -> bool:
        """Return whether a table is no longer published, or some of its changes; False until the next look is due.

        A table that was dropped is not missed: the next start says so.
        """
        if not self._tables or time.monotonic() - self._looked < _SECONDS:
            return False
        self._looked = time.monotonic()
        lost = [
            str(table) for table in self._publication.unpublished(connection, self._tables) if exists(connection, table)
        ]
        if lost:
            log.warning(f"tables are no longer published: changes of theirs are missing{self._after}", tables=lost)
        return bool(lost) or self._publication.leaves_out_changes(connection)
