"""Bringing a state store to the version that this program knows.

``conduit_meta`` holds the version and decides; Alembic's own table is written with it, and revision ``0002`` leads to
version 2. Alembic is imported only where there is something to migrate.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state import schema

VERSION_TABLE = "conduit_migrations"
_LOCK = 0x636F6E64756974  # "conduit": PostgreSQL's advisory lock around creating and migrating

_revisions = sa.Table(
    VERSION_TABLE,
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)


def version_of(connection: sa.Connection) -> int:
    """The store's version; 0 where there is none yet."""
    if not sa.inspect(connection).has_table(schema.meta.name):
        return 0
    value = sa.select(schema.meta.c.value).where(schema.meta.c.name == "version")
    return int(connection.execute(value).scalar_one_or_none() or 0)


def bring(connection: sa.Connection, place: str) -> None:
    """Creates or migrates the tables in the connection's transaction: one that was cut off has changed nothing.

    Raises ``FatalError`` (``state.version``) for a store that a newer program wrote; ``place`` names the store.
    """
    _lock(connection)
    found = version_of(connection)
    if found > schema.VERSION:
        raise _newer(found, place)
    if found == 0:
        schema.metadata.create_all(connection)
        connection.execute(schema.meta.insert().values(name="version", value=str(schema.VERSION)))
        _stamp(connection, schema.VERSION)
    elif found < schema.VERSION:
        _stamp(connection, found)
        _migrate(connection)
        newer = sa.update(schema.meta).where(schema.meta.c.name == "version").values(value=str(schema.VERSION))
        connection.execute(newer)


def _lock(connection: sa.Connection) -> None:
    # on SQLite the transaction itself began with the write lock
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))


def _newer(found: int, place: str) -> FatalError:
    return FatalError(
        f"the state store has version {found}, this program knows version {schema.VERSION}",
        code="state.version",
        place=place,
        fix="install the version of conduit-dagster that wrote it",
    )


def _stamp(connection: sa.Connection, version: int) -> None:
    _revisions.create(connection, checkfirst=True)
    if connection.execute(sa.select(_revisions)).first() is None:
        connection.execute(_revisions.insert().values(version_num=f"{version:04d}"))


def _migrate(connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    command.upgrade(config, f"{schema.VERSION:04d}")
