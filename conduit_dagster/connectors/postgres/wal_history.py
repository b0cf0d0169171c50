"""What an LSN refers to: the cluster, its timelines, and the times at which its WAL reached an LSN.

An LSN is only meaningful within one cluster, and after a failover or a restore it may mean something else there.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import closing

import psycopg

from conduit_dagster.connectors.postgres.connection import Connection, parameters, value_of
from conduit_dagster.connectors.postgres.pgoutput import ReplicationStream
from conduit_dagster.connectors.postgres.source_errors import SourceErrors
from conduit_dagster.connectors.postgres.source_position import PostgresPosition, format_lsn, parse_lsn
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings

UNKNOWN_SERVER = "unknown"
"""Identifier of a server that does not let this user read it."""
_CONTROL = "SELECT has_function_privilege('pg_control_system()', 'EXECUTE')"
_IDENTITY = "SELECT system_identifier::text FROM pg_control_system()"


class ClusterIdentity:
    """System identifier of a connection's cluster, queried once per connection."""

    def __init__(self) -> None:
        self._known: tuple[Connection, str] | None = None

    def of(self, connection: Connection) -> str:
        """Return the identifier, or ``UNKNOWN_SERVER``. Raises ``psycopg.Error``."""
        # cached, because every step checks it and a connection never changes its server
        if self._known is None or self._known[0] is not connection:
            self._known = connection, _identity(connection)
        return self._known[1]


def is_other(server: str, known: str) -> bool:
    """Return whether a server is certainly another one than that of a position; False if either is unknown."""
    return UNKNOWN_SERVER not in (server, known) and known not in ("", server)


def _identity(connection: Connection) -> str:
    is_allowed = value_of(connection, _CONTROL)
    return str(value_of(connection, _IDENTITY)) if is_allowed else UNKNOWN_SERVER


def open_stream(settings: PostgresSourceSettings, errors: SourceErrors, name: str) -> ReplicationStream:
    """Connect for replication, with this ``application_name``. Raises a ``ConduitError``."""
    try:
        return ReplicationStream(parameters(settings, name))
    except psycopg.Error as error:
        raise errors.connecting(error) from None


UNKNOWN_TIMELINE = 0
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
        if UNKNOWN_TIMELINE in (timeline, position.timeline) or timeline == position.timeline or asked == self._passed:
            return
        left = self._ends(timeline).get(position.timeline, 0)
        if left < position.point.lsn:
            raise self._errors.left_timeline(timeline, format_lsn(left) if left else "", position.lsn)
        self._passed = asked

    def _ends(self, timeline: int) -> dict[int, int]:
        """Return the LSNs at which a timeline's predecessors end."""
        if timeline == 1:
            return {}
        with closing(open_stream(self._settings, self._errors, f"{self._application}:timeline")) as stream:
            return _parsed(stream.history(timeline))


def _parsed(history: str) -> dict[int, int]:
    """Parse a history file: a line for each predecessor, with its number and its end."""
    words = [line.split() for line in history.splitlines() if line.strip() and not line.startswith("#")]
    return {int(number): parse_lsn(lsn) for number, lsn, *_ in words}


_MOST = 1_000


class WalTimes:
    """Samples of WAL end and time by one run, the latest thousand or so."""

    def __init__(self) -> None:
        self._lsns: list[int] = []
        self._times: list[float] = []

    def add(self, flushed: int, at: float) -> None:
        """Record that all commits before the server's time ``at`` (seconds since 1970) lie before ``flushed``."""
        if self._lsns and flushed <= self._lsns[-1]:
            if flushed == self._lsns[-1]:
                self._times[-1] = at
            return
        self._lsns.append(flushed)
        self._times.append(at)
        if len(self._lsns) > _MOST:
            # keep every second sample: an age is overstated by at most the time between two samples
            self._lsns, self._times = self._lsns[1::2], self._times[1::2]

    def before(self, lsn: int) -> float | None:
        """Return the latest time up to which all commits lie before ``lsn``; None if no sample is that early."""
        place = bisect_right(self._lsns, lsn)
        return self._times[place - 1] if place else None
