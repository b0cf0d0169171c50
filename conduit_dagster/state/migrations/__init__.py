"""Creation of the state store's tables, and their migration to the version of this program.

A new store gets all tables at once and is stamped with the newest revision. An older one goes through Alembic's
revisions, one file per version in ``versions/``; Alembic is imported only if there is something to migrate.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state import tables

VERSION_TABLE = "conduit_migrations"
_LOCK = 0x636F6E64756974  # "conduit": PostgreSQL's advisory lock around creating and migrating

_ENCODINGS = ("UTF8", "SQL_ASCII")
"""PostgreSQL's encodings that take every character; SQL_ASCII, of a server without a locale, keeps the bytes of UTF-8.
"""

_revisions = sa.Table(
    VERSION_TABLE,
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)


IS_CURRENT = sa.exists(sa.select(_revisions).where(_revisions.c.version_num == f"{tables.VERSION:04d}"))
"""The SQL condition that the store has this program's version: a newer program may have migrated it meanwhile."""


def version_of(connection: sa.Connection) -> int:
    """Return the store's version; 0 for a database without one."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return 0
    return int(connection.execute(sa.select(_revisions.c.version_num)).scalar_one_or_none() or 0)


def migrate(connection: sa.Connection, place: str) -> None:
    """Create or migrate the tables in the connection's transaction: an interrupted migration changes nothing.

    Raises ``FatalError``: ``state.version`` for a store written by a newer program, ``state.unusable`` if others have
    tables of these names, or the encoding of a new store's database lacks characters. ``place`` names the store.
    """
    _lock(connection)
    found = require_not_newer(connection, place)
    if found == 0:
        _require_every_character(connection, place)
        _require_free_names(connection, place)
        tables.metadata.create_all(connection, checkfirst=False)
        _revisions.create(connection)
        connection.execute(_revisions.insert().values(version_num=f"{tables.VERSION:04d}"))
    elif found < tables.VERSION:
        _upgrade(connection)


def require_not_newer(connection: sa.Connection, place: str) -> int:
    """Return the store's version. Raises ``FatalError`` (``state.version``) if a newer program has migrated it."""
    found = version_of(connection)
    if found > tables.VERSION:
        raise _newer(found, place)
    return found


def _lock(connection: sa.Connection) -> None:
    # on SQLite the transaction itself began with the write lock
    if connection.dialect.name == "postgresql":
        # for as long as another process migrates; a frozen one loses its transaction after 10 s
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        connection.exec_driver_sql("SET LOCAL lock_timeout TO DEFAULT")


def _require_every_character(connection: sa.Connection, place: str) -> None:
    if connection.dialect.name != "postgresql":
        return
    found = str(connection.exec_driver_sql("SHOW server_encoding").scalar_one())
    if found not in _ENCODINGS:
        raise FatalError(
            f"the database's encoding is {found}; expected UTF8: names and messages hold any character",
            code="state.unusable",
            place=place,
            fix="name a database that was created with TEMPLATE template0 ENCODING 'UTF8' in CONDUIT_STATE_URL or"
            " state.url",
        )


def _require_free_names(connection: sa.Connection, place: str) -> None:
    database = sa.inspect(connection)
    taken = sorted(name for name in (*tables.metadata.tables, VERSION_TABLE) if database.has_table(name))
    if taken:
        raise FatalError(
            f"the database is no state store, but has {', '.join(taken)}; expected none of the state store's tables",
            code="state.unusable",
            place=place,
            fix="name another database in CONDUIT_STATE_URL or state.url, or another schema with"
            " ?options=-csearch_path%3DSCHEMA",
        )


def _newer(found: int, place: str) -> FatalError:
    return FatalError(
        f"the state store has version {found}, this program knows version {tables.VERSION}",
        code="state.version",
        place=place,
        fix="install the version of conduit-dagster that wrote it; start again what was started before an upgrade",
    )


def _upgrade(connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    if connection.dialect.name == "postgresql":
        # an owner's transaction that found its version ends first, and no other begins
        connection.exec_driver_sql(f"LOCK TABLE {tables.pipelines.name}")
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    command.upgrade(config, f"{tables.VERSION:04d}")
