"""Events that a run writes to Dagster while it moves records and at its end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import dagster as dg
import structlog

from conduit_dagster.assets.asset_checks import (
    CheckResult,
    as_result,
    log_check,
    status_observation,
    status_verdict,
    verdicts,
)
from conduit_dagster.assets.destination_contents import ContentsView
from conduit_dagster.assets.events import Observer, RunSnapshot, acks_materialization, materializations
from conduit_dagster.assets.freshness import Heartbeat
from conduit_dagster.assets.source_checks import readable_verdicts
from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.engine.report import RunResult

log = structlog.get_logger("conduit.dagster")


class Intervals(NamedTuple):
    """How often a run reports, in seconds."""

    every: float
    """Minimum time between two materialisations."""
    max_wait: float
    """Longest time that records may wait for an ack before the check ``ack_lag`` fails."""
    max_lag: float | None = None
    """``max-lag`` of a continuous pipeline, which keeps an idle run fresh; None disables that."""


class RunReporter:
    """Writer of one run's events. Dagster's storage is only a view: records keep moving while it fails."""

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        keys: AssetKeys,
        observer: Observer,
        intervals: Intervals,
    ) -> None:
        self._context, self._keys, self._observer = context, keys, observer
        self._bound, self._contents = observer.bound, ContentsView(observer.pipeline, keys)
        self._every, self._max_wait = intervals.every, intervals.max_wait
        self._heartbeat = Heartbeat(intervals.max_lag, intervals.every)
        self._outcomes: dict[tuple[str, str], bool] = {}
        self._logged, self._begun = 0, False
        self._due = self._heartbeat.next_look(time.monotonic())

    def begin(self) -> None:
        """Log every check at once; otherwise the UI shows it as in progress for as long as the run lasts."""
        self._check(self._verdicts(self._observer.snapshot(), None))

    def tick(self) -> None:
        """Write after the first step, then at most once per interval. Called a few times a second."""
        first, now = not self._begun and self._observer.steps > 0, time.monotonic()
        if not first and now < self._due:
            return
        self._begun, self._due = self._begun or first, now + self._every
        try:
            self._write(now)
        except Exception as error:  # noqa: BLE001  # see the class: the next interval tries again
            log.warning("events could not be written", pipeline=self._bound.id, cause=str(error))
        else:
            self._due = self._heartbeat.next_look(now)

    def _write(self, now: float) -> None:
        snapshot = self._observer.snapshot()
        if snapshot.progress.steps != self._logged:
            self._materialize(snapshot)
            self._heartbeat.show(now)
        elif self._heartbeat.is_due(snapshot, now):
            self._context.log_event(acks_materialization(self._keys, snapshot))
            self._heartbeat.show(now)
            self._begun = True  # right after this event, the first step needs none of its own
        self._check(self._verdicts(snapshot, None))
        self._check_sources(snapshot)

    def end(self, result: RunResult) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
        """Yield the final numbers and the check results that Dagster requires of every run.

        The assets written by a successful run are yielded as outputs, so that downstream assets in the same run begin
        after it. A failed run that moved nothing since the last event materialises nothing: its assets show as failed.
        """
        snapshot = self._observer.snapshot()
        self._check_sources(snapshot, result)
        if result.error is None:
            yield from self._outputs(snapshot)
        else:
            if snapshot.progress.steps != self._logged:
                self._materialize(snapshot, is_failing=True)
            self._observe_failure(result)
        for verdict in self._verdicts(snapshot, result):
            yield as_result(self._keys, verdict)

    def _outputs(self, snapshot: RunSnapshot) -> Iterator[dg.MaterializeResult[Any]]:
        read = {self._keys.of(source.id) for source in self._bound.config.sources}
        for event in materializations(self._bound, self._keys, snapshot, self._contents.metadata()):
            if event.asset_key in read:
                self._context.log_event(event)  # an external asset: no output of this op
            else:
                yield dg.MaterializeResult(asset_key=event.asset_key, metadata=event.metadata)

    def _materialize(self, snapshot: RunSnapshot, is_failing: bool = False) -> None:
        """``is_failing``: don't query destinations for their contents, since one may be the cause."""
        contents = {} if is_failing else self._contents.metadata()
        for event in materializations(self._bound, self._keys, snapshot, contents):
            self._context.log_event(event)
        self._logged = snapshot.progress.steps

    def _check(self, found: Iterable[CheckResult]) -> None:
        """Log only the checks that changed: Dagster keeps every event of a run in memory."""
        for verdict in found:
            check = verdict.asset, verdict.name
            if self._outcomes.get(check) is not verdict.passed:
                log_check(self._context, self._keys, verdict)
                self._outcomes[check] = verdict.passed

    def _check_sources(self, snapshot: RunSnapshot, result: RunResult | None = None) -> None:
        """Log the checks of the sources: these are external assets, so they are no output of this run."""
        self._check(readable_verdicts(self._bound, snapshot, result))

    def _observe_failure(self, result: RunResult) -> None:
        """Replace a sensor's observation of the acks: its restart is no longer pending."""
        verdict = status_verdict(self._bound.id, result)
        if not verdict.passed:
            self._context.log_event(status_observation(self._keys, verdict))

    def _verdicts(self, snapshot: RunSnapshot, result: RunResult | None) -> Iterator[CheckResult]:
        return verdicts(self._bound, snapshot, self._max_wait, result)
