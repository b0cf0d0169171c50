"""Collectors of the metrics, of this process's pipelines and of the state store's, and the page that serves them."""

from __future__ import annotations

import errno
import socket
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIServer

import sqlalchemy as sa
import structlog
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.log_source import JoinSource
from conduit_dagster.metrics.families import (
    BUCKETS,
    DestinationFacts,
    LastStep,
    PipelineFacts,
    SourceFacts,
    StepTimes,
    families,
)
from conduit_dagster.metrics.source_lag import UNKNOWN_LAG, SourceLag
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.policy import PipelineStatus
from conduit_dagster.sdk import Source
from conduit_dagster.state import overview
from conduit_dagster.state.database import reading
from conduit_dagster.state.history import gone, restarts_of
from conduit_dagster.state.recovery_state import NEVER, RecoveryState, recovery_rows
from conduit_dagster.state.tables import steps

if TYPE_CHECKING:
    from conduit_dagster.engine.bound_pipeline import BoundPipeline
    from conduit_dagster.engine.report import RunProgress, RunResult, StepReport

Lag = Callable[[Source, object], SourceLag]


class PipelineMetrics:
    """Counters of one pipeline. Its own thread writes them, a scrape reads them: always those of complete steps."""

    def __init__(self, bound: BoundPipeline, status: Callable[[], str], lag: Lag) -> None:
        self._readers = _readers(bound)
        self._status, self._lag = status, lag
        self._lock = threading.Lock()
        self._classes, self._seconds = [0] * (len(BUCKETS) + 1), 0.0
        self._facts = PipelineFacts(
            bound.id,
            PipelineStatus.RUNNING,
            {source_node.id: SourceFacts(lag=_unknown(source_node.source)) for source_node in bound.compiled.sources},
            {destination_node.id: DestinationFacts(0, 0) for destination_node in bound.compiled.outputs},
            dead_letters=0,
            restarts=0,
        )

    def observe(self, step: StepReport, progress: RunProgress) -> None:
        """Add a finished step. Runs in the pipeline's thread, the only one that may query its sources."""
        lags = {name: self._lag_of(name, progress) for name in self._readers}
        with self._lock:
            self._classes[bisect_left(BUCKETS, step.seconds)] += 1
            self._seconds += step.seconds
            facts = self._facts
            self._facts = replace(
                facts,
                sources=self._counted(step, lags),
                destinations=_delivered(facts.destinations, step),
                dead_letters=(facts.dead_letters or 0) + step.delivered.get(DEAD_LETTERS, 0),
                restart_at=None,
                last=LastStep(step.seconds, time.time()),
            )

    def _counted(self, step: StepReport, lags: Mapping[str, SourceLag]) -> dict[str, SourceFacts]:
        sums = {name: replace(facts, lag=lags.get(name, UNKNOWN_LAG)) for name, facts in self._facts.sources.items()}
        for name, count in step.sources.items():
            known = sums.get(name, SourceFacts())
            sums[name] = replace(
                known,
                read=known.read + count.read,
                acked=known.acked + count.read - count.nacked,
                filtered=known.filtered + count.filtered,
                nacked=known.nacked + count.nacked,
            )
        return sums

    def _lag_of(self, name: str, progress: RunProgress) -> SourceLag:
        reader = self._readers[name]
        return self._lag(reader, progress.positions[name]) if name in progress.positions else _unknown(reader)

    def tell(self, result: RunResult) -> None:
        """Set the status after a failure that is followed by a restart, or when that restart begins."""
        if result.status != PipelineStatus.RECOVERING:
            return
        restart = result.restart
        with self._lock:
            if restart is None:
                self._facts = replace(self._facts, restarts=(self._facts.restarts or 0) + 1, restart_at=None)
            else:
                self._facts = replace(self._facts, restart_at=restart.at_ns / 1e9)

    def facts(self) -> PipelineFacts:
        """Return the pipeline's current figures. No histogram before the first step."""
        with self._lock:
            times = StepTimes(tuple(self._classes), self._seconds) if any(self._classes) else None
            status = self._status()
            # a stop during the wait cancels the restart
            restart_at = self._facts.restart_at if status == PipelineStatus.RECOVERING else None
            return replace(self._facts, status=status, times=times, restart_at=restart_at)


def _unknown(source: Source) -> SourceLag:
    return SourceLag(unit=source.lag_unit)


def _readers(bound: BoundPipeline) -> dict[str, Source]:
    """Return the source that steps read for each source: itself, or its log, which knows the source's own position."""
    found = dict[str, Source]()
    for source_node in bound.compiled.inputs:
        found.update(
            source_node.source.members
            if isinstance(source_node.source, JoinSource)
            else {source_node.id: source_node.source}
        )
    return found


def _delivered(known: Mapping[str, DestinationFacts], step: StepReport) -> dict[str, DestinationFacts]:
    sums = dict(known)
    for name, records in step.delivered.items():
        if name != DEAD_LETTERS:
            had = sums.get(name, DestinationFacts(0, 0))
            sums[name] = DestinationFacts(had.records + records, (had.bytes or 0) + step.bytes.get(name, 0))
    return sums


class LiveMetrics(Collector):
    """All pipelines of a run."""

    def __init__(self) -> None:
        self._tallies: list[PipelineMetrics] = []

    def add(self, bound: BoundPipeline, status: Callable[[], str], lag: Lag) -> PipelineMetrics:
        """Add a pipeline. ``status`` is called at every scrape, ``lag`` after every step."""
        tally = PipelineMetrics(bound, status, lag)
        self._tallies.append(tally)
        return tally

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, for a scrape."""
        return families([tally.facts() for tally in list(self._tallies)])


SourceId = tuple[str, str]
"""Pipeline and source."""
Lags = Callable[[Mapping[SourceId, Any]], Mapping[SourceId, SourceLag]]
"""Positions of sources to their lags, as far as they are known in time."""
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
        pipelines = [row for name, row in overview.pipeline_rows(self._database).items() if name not in away]
        # one that is deleted, and runs again, counts from zero
        self._highest = {key: value for key, value in self._highest.items() if key[1] not in away}
        found = overview.every_source_row(self._database)
        sources = {one["id"]: found.get(one["id"], []) for one in pipelines}
        # all together: sources that hang one after the other would take longer than a scrape may
        lags = self._lags({(name, row["id"]): row["position"] for name, rows in sources.items() for row in rows})
        return families(
            [self._facts(one, recoveries.get(one["id"], NEVER), sources[one["id"]], lags) for one in pipelines]
        )

    def _facts(
        self, row: dict[str, Any], recovery: RecoveryState, sources: overview.Rows, lags: Mapping[SourceId, SourceLag]
    ) -> PipelineFacts:
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
            {one["id"]: self._source(pipeline, one, lags.get((pipeline, one["id"]), UNKNOWN_LAG)) for one in sources},
            {one["id"]: self._destination(pipeline, one) for one in consumers if one["kind"] == "data"},
            next((one["delivered"] for one in consumers if one["kind"] == "dlq"), None),
            restarts,
            restart_at,
            last,
        )

    def _source(self, pipeline: str, row: dict[str, Any], lag: SourceLag) -> SourceFacts:
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


_UP = "conduit_metrics_up"
log = structlog.get_logger("conduit.metrics")


@dataclass(frozen=True)
class MetricsServer:
    """A metrics page that is being served."""

    url: str
    server: WSGIServer
    thread: threading.Thread

    def close(self) -> None:
        """Stop the server; a scrape in progress may get no answer."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class _Guarded(Collector):
    """Reports a failed scrape, for example when the state store is unreachable, instead of exporting nothing."""

    def __init__(self, collector: Collector) -> None:
        self._collector, self._turn = collector, threading.Lock()

    def collect(self) -> Iterator[Metric]:
        up, found = 1, list[Metric]()
        try:
            # one after the other: two threads must not query a source at once
            with self._turn:
                found = list(self._collector.collect())
        except Exception as error:  # noqa: BLE001  # of any library: the next scrape may get through
            log.warning("metrics could not be collected", cause=type(error).__name__)
            up = 0
        yield GaugeMetricFamily(_UP, "0 where the metrics could not be collected.", up)
        yield from found


def serve(host: str, port: int, collector: Collector) -> MetricsServer:
    """Serve ``/metrics`` until closed, or until the process ends. Port 0: any free one.

    Raises ``FatalError`` (``environment.metrics_address``).
    """
    registry = CollectorRegistry()
    registry.register(_Guarded(collector))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise _unusable(host, port, error) from error
    served = MetricsServer(f"http://{_shown(host)}:{server.server_port}/metrics", server, thread)
    log.info("metrics are served", url=served.url)
    return served


def _unusable(host: str, port: int, error: OSError) -> FatalError:
    why: Any = error.strerror or error
    is_elsewhere = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
    here = f"name an address of this machine, such as 127.0.0.1:{port}, or 0.0.0.0:{port} for all of them"
    return FatalError(
        f"metrics can't be served at {_shown(host)}:{port}: {why}",
        code="environment.metrics_address",
        place=f"{_shown(host)}:{port}",
        fix=here if is_elsewhere else "name another port, or end what listens there",
    )


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
