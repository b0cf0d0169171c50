"""Timelines of a cluster: an LSN that was read before a failover or a restore may mean something else after it."""

from __future__ import annotations

from contextlib import closing

import psycopg

from conduit_dagster.connectors.postgres.connection import parameters
from conduit_dagster.connectors.postgres.replication_stream import ReplicationStream
from conduit_dagster.connectors.postgres.source_errors import SourceErrors
from conduit_dagster.connectors.postgres.source_position import PostgresPosition, format_lsn, parse_lsn
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings

UNKNOWN = 0
"""Timeline of a standby, which follows that of its primary."""


class TimelineCheck:
    """Check that a position lies in the history of the server's timeline, queried once for each pair of both."""

    def __init__(self, settings: PostgresSourceSettings, errors: SourceErrors, application: str) -> None:
        self._settings = settings
        self._errors = errors
        self._application = application
        self._passed: tuple[int, str, int] | None = None

    def require(self, timeline: int, position: PostgresPosition) -> None:
        """Raise ``FatalError`` if the server has left the timeline of a position before that position: what was read
        behind that point is not part of its history. Raises ``psycopg.Error``."""
        asked = (position.timeline, position.lsn, timeline)
        if UNKNOWN in (timeline, position.timeline) or timeline == position.timeline or asked == self._passed:
            return
        left = self._ends(timeline).get(position.timeline, 0)
        if left < position.point.lsn:
            raise self._errors.left_timeline(timeline, format_lsn(left) if left else "", position.lsn)
        self._passed = asked

    def _ends(self, timeline: int) -> dict[int, int]:
        """Return the LSNs at which a timeline's predecessors end."""
        if timeline == 1:
            return {}
        try:
            stream = ReplicationStream(parameters(self._settings, f"{self._application}:timeline"))
        except psycopg.Error as error:
            raise self._errors.connecting(error) from None
        with closing(stream):
            return _parsed(stream.history(timeline))


def _parsed(history: str) -> dict[int, int]:
    """Parse a history file: a line for each predecessor, with its number and its end."""
    words = [line.split() for line in history.splitlines() if line.strip() and not line.startswith("#")]
    return {int(number): parse_lsn(lsn) for number, lsn, *_ in words}
