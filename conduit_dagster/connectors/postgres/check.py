"""What can be said of a table before anything is read."""

from __future__ import annotations

from conduit_dagster.connectors.postgres.catalog import Table
from conduit_dagster.connectors.postgres.errors import Verdicts
from conduit_dagster.connectors.postgres.session import Connection
from conduit_dagster.connectors.postgres.settings import PostgresDestinationSettings


def check_columns(table: Table, settings: PostgresDestinationSettings, verdicts: Verdicts) -> None:
    """Raises ``FatalError`` where a column that the settings name is not there."""
    named = [*settings.key_columns, *settings.renames.values()]
    if settings.raw_column:
        named.append(settings.raw_column)
    if settings.unmapped == "json":
        named.append(settings.unmapped_column)
    for name in named:
        if name not in table.columns:
            fix = f"add the column, or correct the setting; the columns are {', '.join(table.columns)}"
            raise verdicts.fatal(f"the table {table.name} has no column {name}", "postgres.no_column", fix)


def check_rights(connection: Connection, table: Table, verdicts: Verdicts) -> None:
    """Raises ``FatalError`` where rows can't be inserted. What updates need shows when there are some."""
    name = table.name.quoted.as_string(connection)
    row = connection.execute("SELECT has_any_column_privilege(%s, 'INSERT'), current_user", (name,)).fetchone()
    if row is not None and not row[0]:
        fix = f"as the table's owner: GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO {row[1]}"
        raise verdicts.fatal(f"no right to insert into {table.name}", "postgres.no_privilege", fix)
