"""Metrics of all pipelines in the state store, over all their runs, in any process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from conduit_dagster.metrics.families import DestinationFacts, LastStep, PipelineFacts, SourceFacts, families
from conduit_dagster.metrics.source_lag import SourceLag
from conduit_dagster.recovery.pipeline_status import PipelineStatus
from conduit_dagster.state import overview
from conduit_dagster.state.database import reading
from conduit_dagster.state.history import gone, restarts_of
from conduit_dagster.state.status_store import NEVER, RecoveryState, recovery_rows
from conduit_dagster.state.tables import steps

Lags = Callable[[str, str, Any], SourceLag]
"""Pipeline, source and position to lag."""
_SLACK = 1000


class StoredMetrics(Collector):
    """Queries the store at every scrape. Errors of the store propagate.

    Pipelines whose file was removed for good are left out, and so are figures that the store does not keep.
    """

    def __init__(self, database: sa.Engine, lags: Lags) -> None:
        self._database, self._lags = database, lags
        self._highest: dict[tuple[str, str, str], int] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, for a scrape."""
        recoveries, away = recovery_rows(self._database), gone(self._database)
        rows = overview.pipeline_rows(self._database)
        return families(
            [self._facts(row, recoveries.get(name, NEVER)) for name, row in rows.items() if name not in away]
        )

    def _facts(self, row: dict[str, Any], recovery: RecoveryState) -> PipelineFacts:
        pipeline, status = row["id"], row["status"]
        consumers = overview.consumer_rows(self._database, pipeline)
        restart_at = (
            recovery.restart_at_ns / 1e9 if recovery.restart_at_ns and status == PipelineStatus.RECOVERING else None
        )
        with reading(self._database) as connection:
            last, restarts = _last_step(connection, pipeline), restarts_of(connection, pipeline)
        return PipelineFacts(
            pipeline,
            status,
            {one["id"]: self._source(pipeline, one) for one in overview.source_rows(self._database, pipeline)},
            {one["id"]: self._destination(pipeline, one) for one in consumers if one["kind"] == "data"},
            next((one["delivered"] for one in consumers if one["kind"] == "dlq"), None),
            restarts,
            restart_at,
            last,
        )

    def _source(self, pipeline: str, row: dict[str, Any]) -> SourceFacts:
        lag = self._lags(pipeline, row["id"], row["position"])
        acked = self._steady("acked", pipeline, row["id"], row["acked"])
        return SourceFacts(row["records"], acked, row["filtered"], row["nacked"], lag)

    def _destination(self, pipeline: str, row: dict[str, Any]) -> DestinationFacts:
        return DestinationFacts(self._steady("delivered", pipeline, row["id"], row["delivered"]))

    def _steady(self, what: str, pipeline: str, name: str, value: int) -> int:
        """Keep a counter from going back a little: Prometheus would take that for a restart and count everything again.

        The store's counters go back by nacks of a step that is not done yet, and by records dropped with at-most-once.
        A much lower value means another store.
        """
        key = (what, pipeline, name)
        known = self._highest.get(key, 0)
        near = known - max(_SLACK, known // 10) <= value < known
        self._highest[key] = shown = known if near else value
        return shown


def _last_step(connection: sa.Connection, pipeline: str) -> LastStep | None:
    mine = (steps.c.pipeline == pipeline, steps.c.state == "done", steps.c.done_ns > 0)
    newest = sa.select(steps.c.planned_ns, steps.c.done_ns).where(*mine).order_by(steps.c.step.desc()).limit(1)
    row = connection.execute(newest).first()
    return None if row is None else LastStep(max(0, row.done_ns - row.planned_ns) / 1e9, row.done_ns / 1e9)
