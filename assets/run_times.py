"""Times of runs in Dagster's run storage."""

from __future__ import annotations

import dagster as dg

_OFFSETS = 900.0
"""Seconds of which every time zone's offset is a multiple."""


def clock_ahead(instance: dg.DagsterInstance, record: dg.RunRecord) -> float | None:
    """Return by how many seconds the run storage's times are ahead of UTC; None if the run's events don't tell.

    A database whose time zone is not UTC keeps its local time there, and Dagster reads it as UTC.
    """
    created, begun = record.create_timestamp.timestamp(), record.start_time
    if begun is None or abs(created - begun) > _OFFSETS / 2:
        stats = instance.get_run_stats(record.dagster_run.run_id)
        begun = stats.enqueued_time or stats.launch_time or begun
    return None if begun is None else round((created - begun) / _OFFSETS) * _OFFSETS


def created_ns(instance: dg.DagsterInstance, run_id: str) -> int | None:
    """Return when a run was created, in ns; None if there is no such run."""
    record = instance.get_run_record_by_id(run_id)
    if record is None:
        return None
    return round((record.create_timestamp.timestamp() - (clock_ahead(instance, record) or 0.0)) * 1e9)
