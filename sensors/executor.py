"""Execution of decisions: run requests for Dagster, requests and failures for the state store.

Where several code locations of a Dagster have loaded the same project, one launches each run.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import sqlalchemy as sa

from conduit_dagster.assets.asset_checks import AssetEvent, CheckResult, failed_verdict, status_events, stopped_verdict
from conduit_dagster.assets.names import ACKS, NO_RETRIES, short
from conduit_dagster.assets.run_op import INVALID
from conduit_dagster.assets.run_origin import ASKED_TAG, ATTEMPT_TAG, FAILURE_TAG, RESTART_TAG
from conduit_dagster.engine.report import PendingRestart
from conduit_dagster.engine.run_status import NO_FAILURE, RunDeath, end_waiting, report_failure
from conduit_dagster.recovery.errors import ConduitError, TransientError
from conduit_dagster.sensors.dagster_runs import LOOK, LastRun, config_of, error_of
from conduit_dagster.sensors.decisions import Cancelled, Decision, Report, Restart, Start, Stopped, StopRequest
from conduit_dagster.sensors.known import KnownPipeline
from conduit_dagster.state.launches import LaunchClaim, LaunchKind, claim_launch
from conduit_dagster.state.recovery_state import record_request

_SENSOR = "a sensor"
_WHY = {"terminated": "terminated before it began", "called_off": "its pipeline was stopped, or ran, before it began"}
_EXPIRY = 60.0
"""Seconds after which another code location launches a run that was claimed and is still due: Dagster ends a tick after
60 s.
"""


def is_by_hand(context: dg.SensorEvaluationContext) -> bool:
    """Return whether the sensor is evaluated by hand, in Dagster's UI or by its command ``sensor preview``.

    Dagster names a tick by its number, and such an evaluation, of which it launches and stores nothing, by its time.
    """
    return not (context.log_key or ["0"])[-1].isdecimal()


class LaunchClaims:
    """Claims of launches as one sensor sees them, over the ticks of one process.

    A code location that claims a launch and is killed before Dagster has the run launches it again when it is back;
    until then another one does, after ``_EXPIRY``. That is counted by this process's own clock, as for leases.
    """

    def __init__(self) -> None:
        self._others: dict[tuple[str, LaunchKind], tuple[LaunchClaim, float]] = {}
        """By pipeline and kind: the claim of another code location, and when it was seen first."""

    def take(self, database: sa.Engine, pipeline: str, kind: LaunchKind, wanted: LaunchClaim) -> bool:
        """Claim a launch; return False if it is left to another code location."""
        now = time.monotonic()
        place = pipeline, kind
        other, since = self._others.get(place, (None, now))
        expired = other if now - since >= _EXPIRY else None
        found = claim_launch(database, pipeline, kind, wanted, expired)
        if found == wanted:
            self._others.pop(place, None)
            return True
        if found != other:
            self._others[place] = found, now
        return False


class DecisionExecutor:
    """Executor of decisions, for one tick."""

    def __init__(
        self, context: dg.SensorEvaluationContext, database: sa.Engine, claims: LaunchClaims, project: str
    ) -> None:
        """``project``: value of ``PROJECT_TAG``."""
        self._context, self._instance, self._database = context, context.instance, database
        self._claims, self._project, origin = claims, project, context.code_location_origin
        self._location = "" if origin is None else origin.location_name  # empty outside of Dagster's daemon
        self.requests: list[dg.RunRequest] = []
        self.events: list[AssetEvent] = []
        self.left: list[str] = []
        """What an evaluation by hand has left undone."""

    def carry_out(self, known: KnownPipeline, decision: Decision) -> None:
        """Carry out one decision for one pipeline; by hand, only show what Dagster would launch."""
        if is_by_hand(self._context) and decision is not None and not isinstance(decision, Restart | Start):
            self.left.append(f"{_would(decision)} of {known.file.pipeline}")
            return
        match decision:
            case Restart():
                self._restart(known, decision)
            case Start():
                self._start(known, decision)
            case Report():
                self._report(known, decision)
            case Stopped():
                end_waiting(self._database, known.file.pipeline, "user", epoch=known.stored.epoch)
                self._show(known, stopped_verdict())
            case Cancelled():
                self._cancel(decision)
            case StopRequest():
                record_request(self._database, known.file.pipeline, decision.asked, _SENSOR)
            case None:
                return

    def has_requested(self, job: str) -> bool:
        """Return whether a run of the job is among the requests."""
        return any(request.job_name == job for request in self.requests)

    def _restart(self, known: KnownPipeline, restart: Restart) -> None:
        file, state = known.file, known.stored.recovery
        tags = {
            FAILURE_TAG: str(restart.failure),
            ATTEMPT_TAG: str(restart.attempt),
            RESTART_TAG: str(restart.at_ns),
            "dagster/parent_run_id": state.run,
        }
        # the same failure always gives the same key, in every daemon
        key = f"{file.pipeline}:restart:{restart.failure}:{restart.at_ns}"
        if not self._claim(known, "restart", key):
            return
        self._request(known, key, {name: value for name, value in tags.items() if value}, state.run)
        due = datetime.fromtimestamp(restart.at_ns / 1e9, UTC)
        cause: dict[str, Any] = state.cause or {}
        facts: dict[str, Any] = {
            "attempt": restart.attempt,
            "next_restart_at": dg.MetadataValue.timestamp(due),
            "error_code": str(cause.get("code", "")),
            "error": str(cause.get("message", "")),
        }
        text = f"restart {restart.attempt} at {due:%Y-%m-%d %H:%M:%S}Z"
        self.events.append(dg.AssetObservation(file.keys.of(ACKS), description=text, metadata=facts))

    def _start(self, known: KnownPipeline, start: Start) -> None:
        before = known.run.run_id if known.run else "first"
        key = f"{known.file.pipeline}:start:{before}:{known.stored.recovery.asked_ns}"
        tags = {"conduit/why": start.why, ASKED_TAG: str(known.stored.recovery.asked_ns)}
        if self._claim(known, "start", key):
            self._request(known, key, tags, "")

    def _claim(self, known: KnownPipeline, kind: LaunchKind, key: str) -> bool:
        """Return whether this code location launches the run; another one may have the project as well."""
        if is_by_hand(self._context):
            return True
        return self._claims.take(self._database, known.file.pipeline, kind, LaunchClaim(key, self._location))

    def _request(self, known: KnownPipeline, key: str, tags: dict[str, str], like: str) -> None:
        file = known.file
        tags = {"conduit/pipeline": short(file.pipeline), **NO_RETRIES, **tags}
        config = self._fitting(file.job, config_of(self._instance, like, file.job, file.running))
        # a project that was moved, or has another state store, knows none of its earlier runs
        run_key = f"{self._project}:{key}"
        self.requests.append(dg.RunRequest(run_key=run_key, job_name=file.job, run_config=config, tags=tags))

    def _fitting(self, job: str, config: dict[str, Any]) -> dict[str, Any]:
        """Return the config; empty if it no longer fits the job: Dagster would launch nothing else of this tick."""
        repository = self._context.repository_def
        if config and repository is not None:
            try:
                dg.validate_run_config(repository.get_job(job), config)
            except dg.DagsterInvalidConfigError as error:
                self._context.log.warning(f"job {job} is restarted without its run's config, which is invalid: {error}")
                return {}
        return config

    def _report(self, known: KnownPipeline, report: Report) -> None:
        run = known.found(report.run_id)
        error = self._error(report, run is not None)
        file, epoch = known.file, known.stored.epoch
        # a run that began has stored its own
        digest = _failed_digest(known, run, error) if report.kind == "never_began" else None
        death = RunDeath(report.run_id, error, epoch, digest, None if run is None else run.asked_ns)
        failed = report_failure(self._database, file.pipeline, death, file.policy)
        # a run that has begun since is at work; one that was refused has ended
        if run is not None and run.active and (failed is not None or error.code in NO_FAILURE):
            self._bury(report.run_id, error)
        if failed is not None:
            restart = None if failed.wait is None else PendingRestart.of(failed.wait, failed.failure)
            self._show(known, failed_verdict(known.file.pipeline, failed.status, error, restart))

    def _error(self, report: Report, in_dagster: bool) -> ConduitError:
        if in_dagster:
            return error_of(self._instance, report.run_id)
        message = f"run {report.run_id or '(unknown)'} died without reporting an error"
        return TransientError(message, code="run.died", fix=LOOK)

    def _bury(self, run_id: str, error: ConduitError) -> None:
        """Report the run as failed: its process has ended, and Dagster would show it as running forever."""
        run = self._instance.get_run_by_id(run_id)
        if run is not None and not run.is_finished:
            self._instance.report_run_failed(run, f"found dead by its heartbeat: {error.message}")

    def _cancel(self, cancelled: Cancelled) -> None:
        run = self._instance.get_run_by_id(cancelled.run_id)
        if run is not None and not run.is_finished:
            self._instance.report_run_canceled(run, f"{_WHY[cancelled.why]}; its process reports no end")

    def _show(self, known: KnownPipeline, verdict: CheckResult) -> None:
        self.events += status_events(known.file.keys, verdict)


def _failed_digest(known: KnownPipeline, run: LastRun | None, error: ConduitError) -> str:
    """Return the digest of the file with which a run failed to begin; empty if the file had errors at that time."""
    had_errors = error.code == INVALID and run is not None and run.created_ns < known.file.since_ns
    return "" if had_errors else known.file.digest


def _would(decision: Report | Stopped | Cancelled | StopRequest) -> str:
    """Return what a tick would do for a decision that launches nothing."""
    match decision:
        case Report():
            return f"count run {decision.run_id or '(unknown)'} as a failure"
        case Stopped():
            return "record the stop"
        case Cancelled():
            return f"mark run {decision.run_id} as cancelled"
        case StopRequest():
            return "renew the run" if decision.asked == "renew" else "stop the run"
