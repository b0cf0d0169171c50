"""How far a step reads the stream of a slot, and how often: a read costs what is decoded for it, and may have to wait.

The server decodes from the beginning of the oldest transaction that was open at the last confirmed LSN, whatever it
sends of that. Where a transaction stays open, that is ever more WAL with each read.
"""

from __future__ import annotations

import time
from typing import Any

import structlog

from conduit_dagster.connectors.postgres.connection import Connection
from conduit_dagster.connectors.postgres.replication_slot import ReplicationSlot, SlotLook
from conduit_dagster.connectors.postgres.source_errors import SourceErrors
from conduit_dagster.connectors.postgres.source_position import format_lsn, parse_lsn
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings

_WAL_BYTES = 4
"""Bytes of WAL per byte of a step's limit: the WAL also contains indexes and rows of other tables."""
_MOST = 16
"""A range takes at most this many times those."""
_DEAR = 64 << 20
"""Bytes of WAL to decode from which the stream is read less often."""
_RATE = 32 << 20
"""Bytes of WAL per second of rest. A server decodes four times as much, and a step has it decode up to three times: to
see whether there are changes, to send them, and to confirm them."""
_LITTLE = 1 / 8
"""Part of what is decoded, below which it is worth waiting for more."""


class StreamPace:
    """Pace of one run."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self.rest = 0.0
        """Seconds from one read to the next, as of the last look."""

    def is_resting(self, look: SlotLook, lsn: int, upto: int, limit: int) -> bool:
        """Return whether it is too early to read what there is from ``lsn`` to ``upto``; ``limit``: bytes of a step."""
        # without an open transaction the server begins some 15 seconds back: much on a busy one, where much is new soon
        is_little = upto - lsn < _decoded(look, upto) * _LITTLE and upto <= self.end(look, lsn, limit)
        is_little = is_little and is_dear(look, upto)
        self.rest = _decoded(look, upto) / _RATE if is_little else 0.0
        return time.monotonic() - self._began < self.rest

    def begin(self) -> None:
        """Note that the stream is read now."""
        self._began = time.monotonic()

    def end(self, look: SlotLook, lsn: int, limit: int) -> int:
        """Return where a range from ``lsn`` on ends at the latest; ``limit``: bytes of a step.

        A range is as long as what has to be decoded before it, so that a reader that is behind gets ahead.
        """
        full = _WAL_BYTES * limit
        return lsn + max(full, min(_decoded(look, lsn), _MOST * full))


def is_dear(look: SlotLook, upto: int) -> bool:
    """Return whether a read up to ``upto`` takes the server a second or so, however little it sends."""
    return _decoded(look, upto) >= _DEAR


def _decoded(look: SlotLook, upto: int) -> int:
    """Return how many bytes of WAL the server decodes to send the changes before ``upto``."""
    return max(0, upto - look.restart)


_PAUSE = 0.05
_QUIET = 60.0
"""Seconds without a standby's progress after which a warning is logged, and between two of them."""

log = structlog.get_logger("conduit.postgres")


class AwaitedStandbys:
    """Standbys that a slot with ``failover`` waits for (PostgreSQL 17, ``synchronized_standby_slots``).

    It gives no change that one of them lacks, and each statement that reads it or moves it waits on the server until
    they have it, where nothing says why, nor how long.
    """

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
