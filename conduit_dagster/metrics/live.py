"""Metrics of the pipelines that run in this process, counted since its start."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.join_source import JoinSource
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
from conduit_dagster.recovery.pipeline_status import PipelineStatus
from conduit_dagster.sdk import Source

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
