"""Row-level security, which hides rows from statements: the change of a hidden row would do nothing, and succeed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal

from conduit_dagster.connectors.postgres.connection import Connection, value_of
from conduit_dagster.connectors.postgres.settings import TableName

Command = Literal["r", "w", "d"]
"""What a policy is for, as in ``pg_policy``: reads, updates, deletes."""

_HIDES: Final = """
    WITH own AS (
        SELECT * FROM pg_policy p WHERE p.polrelid = to_regclass(%s) AND EXISTS (
            SELECT FROM unnest(p.polroles) AS role (id) WHERE id = 0 OR pg_has_role(id, 'USAGE')))
    SELECT row_security_active(%s) AND EXISTS (
        SELECT FROM unnest(%s::text[]) AS command (name)
        WHERE EXISTS (SELECT FROM own WHERE polcmd::text IN ('*', name) AND NOT polpermissive)
            OR NOT EXISTS (SELECT FROM own WHERE polcmd::text IN ('*', name) AND polpermissive
                           AND pg_get_expr(polqual, polrelid) = 'true'))
"""


def refuse_hidden_rows(connection: Connection, tables: Sequence[TableName], commands: Collection[Command]) -> None:
    """Have the server refuse the following statements of the transaction on a table of which a policy may hide rows.

    It takes each policy for one that may, but those that take every row (``USING (true)``).
    """
    for table in tables:
        name = table.quoted.as_string(connection)
        if value_of(connection, _HIDES, (name, name, sorted(commands))):
            connection.execute("SET LOCAL row_security = off")
