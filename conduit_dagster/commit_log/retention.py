"""Retention: how long the log keeps segments that every consumer has handled (``delivery.log-retention``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from conduit_dagster.commit_log.log_reader import read
from conduit_dagster.commit_log.segment_layout import LogFolder
from conduit_dagster.config.delivery import LogRetention
from conduit_dagster.state.log_store import LogPart

_MICROSECONDS: Final = 1_000_000


def beyond_retention(
    folder: LogFolder, closed: Sequence[list[LogPart]], retention: LogRetention | None, now_us: int
) -> list[list[LogPart]]:
    """Return the closed segments, out of all in order, beyond the retention: only those may be compacted.

    A segment is kept while its newest entry is younger than ``time``, and the closed segments after it have fewer than
    ``bytes`` together. The kept segments are always the end of the log, without a gap. Raises like :func:`read` for a
    segment whose time can't be read.
    """
    if retention is None:
        return [*closed]
    bytes_after = 0
    for place in range(len(closed) - 1, -1, -1):
        parts = closed[place]
        if _is_beyond(folder, parts, retention, now_us, bytes_after):
            return [*closed[: place + 1]]
        bytes_after += sum(part.bytes for part in parts)
    return []


def _is_beyond(folder: LogFolder, parts: list[LogPart], retention: LogRetention, now_us: int, bytes_after: int) -> bool:
    if retention.bytes is not None and bytes_after >= retention.bytes:
        return True
    return retention.time is not None and now_us - _newest_us(folder, parts) >= retention.time * _MICROSECONDS


def _newest_us(folder: LogFolder, parts: list[LogPart]) -> int:
    """Return when a segment's last entry was logged. Compaction keeps that entry: it is the last of its namespace."""
    last = next(read(folder, parts[-1:], parts[-1].next - 1, columns=["timestamp"]))
    return int(last.column("timestamp")[-1].value)
