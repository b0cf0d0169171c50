"""One tick of a sensor: observe, decide and act, for every pipeline of the code location."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import dagster as dg
import sqlalchemy as sa

from conduit_dagster.assets.asset_checks import STATUS, AssetEvent, status_events, stopped_verdict
from conduit_dagster.assets.broken_files import FileEvents
from conduit_dagster.assets.names import ACKS, project_name
from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.config.project import Project
from conduit_dagster.recovery.policy import PipelineStatus
from conduit_dagster.sensors.alerts import alert_sensor
from conduit_dagster.sensors.dagster_runs import Runs
from conduit_dagster.sensors.decisions import Decision, StopRequest, lifecycle, recovery
from conduit_dagster.sensors.executor import DecisionExecutor, LaunchClaims, is_by_hand
from conduit_dagster.sensors.known import CachedStore, File, Files, HeartbeatMonitor, KnownPipeline, Stored, stored
from conduit_dagster.state.history import deprovision

_POLL = 0.25
_UNKNOWN = Stored()


class Tick:
    """State and logic of a sensor; lives as long as the code server's process."""

    def __init__(
        self,
        project: Project,
        keys: Mapping[str, AssetKeys],
        decide: Callable[[KnownPipeline, int], Decision],
        watches_files: bool = False,
    ) -> None:
        """``keys``: asset keys of each pipeline, by the name of its job."""
        self._decide, self._watches_files = decide, watches_files
        self._file_events, self._stopped = FileEvents(), StoppedChecks()
        self._files, self._heartbeats = Files(project.root, keys), HeartbeatMonitor()
        # fixed, like the jobs' own tag: settings may change until the code location is loaded again
        self._project = project_name(project)
        self._store, self._claims = CachedStore(), LaunchClaims()
        self._renewed: dict[str, tuple[str, tuple[str, str]]] = {}
        """By pipeline: the run that was renewed last, with its digest and that of the file."""
        self._away = set[tuple[str, int]]()
        """Pipelines whose missing file is recorded, with the epochs of their last owners."""

    def run(self, context: dg.SensorEvaluationContext, stay: float = 0.0) -> dg.SensorResult | dg.SkipReason:
        """Run a tick. ``stay``: seconds to keep polling, so that events between two ticks are not detected late.

        Errors of the state store propagate: Dagster shows them and tries again.
        """
        project, files = self._files.read()
        database = self._store.of(project)
        executor = DecisionExecutor(context, database, self._claims, self._project)
        runs = Runs(context.instance, self._project)
        end = time.monotonic() + stay
        seen: dict[str, Stored] | None = None
        while True:
            rows = stored(database, self._heartbeats, project.settings.state.lease)
            if rows != seen:
                runs.refresh()
                seen = rows
            before = len(executor.requests)
            self._act_on(context, files, rows, executor, runs)
            # pipelines that fail together are restarted together: the next tick is seconds away
            settled = before == len(executor.requests) > 0
            if settled or time.monotonic() + _POLL >= end:
                break
            time.sleep(_POLL)
        if self._watches_files and not is_by_hand(context):
            self._deprovision(database, seen or {})
            executor.events.extend(self._stopped.of(context.instance, files, seen or {}))
            if (changed := self._files.take_changed()) is not None:
                executor.events.extend(self._file_events.of(changed))
        if executor.requests or executor.events:
            return dg.SensorResult(run_requests=executor.requests, asset_events=executor.events)
        if executor.left:
            return dg.SkipReason(f"evaluated by hand, which changes nothing; a tick would {', '.join(executor.left)}")
        return dg.SkipReason(f"nothing to do for {len(files)} pipelines")

    def _deprovision(self, database: sa.Engine, rows: Mapping[str, Stored]) -> None:
        """Record which pipelines' files are missing, once until such a pipeline has run again: each is a write."""
        found = {(pipeline, rows[pipeline].epoch) for pipeline in self._files.gone(rows)}
        for pipeline, _ in found - self._away:
            deprovision(database, pipeline)
        self._away = found

    def _act_on(
        self,
        context: dg.SensorEvaluationContext,
        files: list[File],
        rows: dict[str, Stored],
        executor: DecisionExecutor,
        runs: Runs,
    ) -> None:
        # read once: a plugin that changed is a part of every pipeline
        digests = cache(self._files.current_digests)
        for file in files:
            if executor.has_requested(file.job):
                continue
            # one broken pipeline must not delay the others
            try:
                row = rows.get(file.pipeline, _UNKNOWN)
                # a query for each of many pipelines takes longer than a tick may
                known = _known(file, row, runs)
                decision = self._decide(known, time.time_ns())
                if not self._is_renewed(known, decision, digests):
                    executor.carry_out(known, decision)
            except Exception as error:  # noqa: BLE001
                context.log.error(f"pipeline {file.pipeline} was left out of this tick: {error}")

    def _is_renewed(self, known: KnownPipeline, decision: Decision, digests: Callable[[], dict[str, str]]) -> bool:
        """Return whether a run is to be renewed that has the current file already: it would be renewed without end.

        A run of another version of this package, as after an upgrade beside this process, may tell the same file by
        another digest: it is renewed once.
        """
        name, ours, state = known.file.pipeline, known.file.digest, known.stored.recovery
        if ours == state.digest:
            self._renewed.pop(name, None)
        if not isinstance(decision, StopRequest) or decision.asked != "renew":
            return False
        digest_pair = state.digest, ours
        run, renewed = self._renewed.get(name, ("", None))
        if renewed == digest_pair and run != state.run:
            return True
        self._renewed[name] = state.run, digest_pair
        if digests().get(name) != state.digest:
            return False
        self._files.forget()
        return True


def _known(file: File, row: Stored, runs: Runs) -> KnownPipeline:
    """Return what is known of a pipeline; of one that nobody owns and that should be at work, also its own last run."""
    if row.owned:
        return KnownPipeline(file, row, None)
    run, last = runs.of(file.job), row.recovery.run
    is_hidden = row.status in _AT_WORK and (run is None or run.run_id != last)
    return KnownPipeline(file, row, run, runs.by_id(file.job, last) if is_hidden else None)


_ENDED = (PipelineStatus.RECOVERING, PipelineStatus.DEGRADED)
"""What a check may say that the stop has ended."""


class StoppedChecks:
    """Events for pipelines that a user stopped outside of Dagster, as by ``pipelines stop``: nothing else makes any.

    Remembers which are known to be stopped.
    """

    def __init__(self) -> None:
        self._known = set[tuple[str, int]]()
        """Pipelines, with the numbers of their last failures."""

    def of(
        self, instance: dg.DagsterInstance, files: Iterable[File], rows: Mapping[str, Stored]
    ) -> Iterator[AssetEvent]:
        """Yield the events of pipelines that were stopped since, and whose check ``status`` says something else."""
        found = {(file.pipeline, rows[file.pipeline].recovery.failure): file.keys for file in _stopped(files, rows)}
        for keys in _outdated(instance, [keys for one, keys in found.items() if one not in self._known]):
            yield from status_events(keys, stopped_verdict())
        self._known = set(found)


def _stopped(files: Iterable[File], rows: Mapping[str, Stored]) -> Iterator[File]:
    for file in files:
        row = rows.get(file.pipeline)
        if row is not None and not row.owned and (row.status, row.reason) == (PipelineStatus.STOPPED, "user"):
            yield file


def _outdated(instance: dg.DagsterInstance, every: Iterable[AssetKeys]) -> Iterator[AssetKeys]:
    checks = {dg.AssetCheckKey(keys.of(ACKS), STATUS): keys for keys in every}
    if not checks:
        return
    # in one query: at the first tick there may be many
    newest = instance.event_log_storage.get_latest_asset_check_execution_by_key(list(checks))
    for check, record in newest.items():
        evaluation: Any = record.evaluation
        # one that is only planned is up to its run
        told = evaluation.metadata.get("status") if isinstance(evaluation, dg.AssetCheckEvaluation) else None
        if told is not None and told.value in _ENDED:
            yield checks[check]


_AT_WORK = (PipelineStatus.RUNNING, PipelineStatus.RECOVERING)
_RECOVERY = "Restarts failed pipelines with backoff, and finds runs that died without reporting an error."
_LIFECYCLE = "Starts pipelines whose file says running, obeys pipelines start and stop, picks up changed files."
_STAY = 4.25
"""Seconds that a tick keeps polling. Dagster's loop calls a sensor at most every 5 s; a tick that took longer would
miss the next one.
"""
_LEAD_NS = 10_000_000_000
"""Lead time of a restart's launch: a tick, plus the few seconds that a run needs to start."""


def define_sensors(project: Project, jobs: Sequence[Any], keys: Mapping[str, AssetKeys]) -> list[dg.SensorDefinition]:
    """Return the sensors. ``keys``: asset keys of each pipeline, by the name of its job.

    The cursors of the first two are empty: the stores decide.
    """
    restarts = Tick(project, keys, partial(recovery, lead_ns=_LEAD_NS))
    starts = Tick(project, keys, lifecycle, watches_files=True)
    return [
        _sensor(restarts, "conduit_recovery", _RECOVERY, jobs, _STAY),
        _sensor(starts, "conduit_lifecycle", _LIFECYCLE, jobs),
        alert_sensor(project),
    ]


def _sensor(tick: Tick, name: str, description: str, jobs: Sequence[Any], stay: float = 0.0) -> dg.SensorDefinition:
    """Return the sensor that runs ``tick`` as often as Dagster allows, for ``stay`` seconds each time."""

    @dg.sensor(
        name=name,
        jobs=jobs,
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=description,
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        return tick.run(context, stay)

    return sensor
