"""Watch over a publication during a run: changes of a table that leaves it are missing in the stream from then on."""

from __future__ import annotations

import time
from collections.abc import Sequence

import structlog

from conduit_dagster.connectors.postgres.connection import Connection, exists
from conduit_dagster.connectors.postgres.publication import Publication
from conduit_dagster.connectors.postgres.settings import TableName

_SECONDS = 10.0
"""Seconds between two looks."""

log = structlog.get_logger("conduit.postgres")


class PublicationWatch:
    """Looks now and then whether all tables of a run are still published, as they are when it begins."""

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
