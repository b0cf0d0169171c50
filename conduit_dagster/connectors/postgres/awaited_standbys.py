"""Standbys that a slot with ``failover`` waits for (PostgreSQL 17, ``synchronized_standby_slots``): it gives no change
that one of them lacks, and each statement that reads it or moves it waits on the server until they have it.
"""

from __future__ import annotations

import time
from typing import Any

import structlog

from conduit_dagster.connectors.postgres.connection import Connection
from conduit_dagster.connectors.postgres.replication_slot import ReplicationSlot
from conduit_dagster.connectors.postgres.source_errors import SourceErrors
from conduit_dagster.connectors.postgres.source_position import format_lsn, parse_lsn
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings

_PAUSE = 0.05
_QUIET = 60.0
"""Seconds without a standby's progress after which a warning is logged, and between two of them."""

log = structlog.get_logger("conduit.postgres")


class AwaitedStandbys:
    """How far a slot can be read without waiting on the server, where nothing says why, nor how long."""

    def __init__(self, settings: PostgresSourceSettings, errors: SourceErrors, slot: ReplicationSlot) -> None:
        self._settings = settings
        self._errors = errors
        self._slot = slot
        self._told = time.monotonic()

    def readable(self, connection: Connection, lsn: int, horizon: Any) -> int:
        """Return the LSN up to which the slot can be read from ``lsn`` on. With a horizon, wait until that can be
        read; raises ``TransientError`` after ``lock-timeout``."""
        look, limit, begun = self._slot.look(connection), self._settings.lock_timeout, time.monotonic()
        if horizon is None:
            self._tell(look.readable, lsn, look.flushed)
            return look.readable
        upto = min(look.flushed, parse_lsn(horizon["lsn"]))
        while look.readable < upto:
            if limit and time.monotonic() - begun > limit:
                raise self._errors.standbys_behind(format_lsn(look.readable), format_lsn(upto))
            time.sleep(_PAUSE)
            look = self._slot.look(connection)
        return upto

    def _tell(self, readable: int, lsn: int, flushed: int) -> None:
        now = time.monotonic()
        if not readable <= lsn < flushed:
            self._told = now
        elif now - self._told > _QUIET:
            self._told = now
            log.warning("changes wait for a standby of synchronized_standby_slots", since=format_lsn(readable))
