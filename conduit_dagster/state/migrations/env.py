"""Alembic's entry point: runs the migrations inside the transaction that is already open."""

from __future__ import annotations

from alembic import context

from conduit_dagster.state.migrations import VERSION_TABLE

connection = context.config.attributes["connection"]
context.configure(connection=connection, version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
