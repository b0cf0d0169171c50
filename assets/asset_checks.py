"""Asset checks of a pipeline and of its sources.

A source is an external asset: no run materialises it, so a run that fails there does not mark it as failed. Its check
``readable`` does, which a run evaluates while it reads, and which executed alone queries the source.
"""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg
import sqlalchemy as sa

from conduit_dagster.assets.events import RunSnapshot
from conduit_dagster.assets.names import ACKS, GROUP
from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.config.pipeline import DeadLetterQueue
from conduit_dagster.daemon_threads import BY_HAND, answer_within
from conduit_dagster.engine.bound_pipeline import BoundPipeline, Catalogue, open_catalogue
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS, close_sources
from conduit_dagster.engine.registering import attach_kept_to_look
from conduit_dagster.engine.report import PendingRestart, RunResult
from conduit_dagster.engine.run_status import NO_FAILURE
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.node_ids import node_id
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.recovery.policy import PipelineStatus
from conduit_dagster.resources.spark_resource import StateResource
from conduit_dagster.state.overview import source_rows

NO_DEAD_LETTERS = "no_dead_letters"
OPEN_DEAD_LETTERS = "open_dead_letters"
NACK_RATE = "nack_rate"
ACK_LAG = "ack_lag"
NO_OFFSET_GAP = "no_offset_gap"
STATUS = "status"

_CHECKS = {
    NO_DEAD_LETTERS: (DEAD_LETTERS, "No dead letter is open: each was sent again, or discarded with a note."),
    OPEN_DEAD_LETTERS: (DEAD_LETTERS, "Not more dead letters are open than the queue's open-limit."),
    NACK_RATE: (
        DEAD_LETTERS,
        "The nacks of this run are within the dead-letter queue's window-nack-threshold.",
    ),
    ACK_LAG: (ACKS, "Nothing waits at the sources, or something was acked recently."),
    STATUS: (ACKS, "The pipeline has not failed: it neither waits for a restart nor is degraded."),
    NO_OFFSET_GAP: (ACKS, "Every step begins where the one before it ended: nothing was left out."),
}


@dataclass(frozen=True)
class CheckResult:
    """Outcome of one asset check."""

    name: str
    passed: bool
    description: str
    metadata: dict[str, Any]
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN
    source: str = ""
    """Id of the source whose asset it checks; empty for a check of the pipeline itself."""

    @property
    def asset(self) -> str:
        """Name of the asset in its pipeline."""
        return self.source or _CHECKS[self.name][0]


def check_specs(keys: AssetKeys) -> list[dg.AssetCheckSpec]:
    """Return the check specs of a pipeline. None of them blocks: a dead letter in the queue does not fail the run."""
    return [
        dg.AssetCheckSpec(name, asset=keys.of(asset), description=description)
        for name, (asset, description) in _CHECKS.items()
    ]


def verdicts(
    bound: BoundPipeline, snapshot: RunSnapshot, max_wait: float, result: RunResult | None = None
) -> Iterator[CheckResult]:
    """Yield the results of all checks. ``result``: result of the run; None while it is in progress."""
    error = None if result is None else result.error
    yield status_verdict(bound.id, result)
    yield from letter_verdicts(bound, snapshot.open)
    yield _nack_rate(snapshot, bound.config.dead_letter_queue, error)
    yield _ack_lag(snapshot, max_wait, error)
    yield _no_offset_gap(snapshot)


def as_evaluation(keys: AssetKeys, verdict: CheckResult) -> dg.AssetCheckEvaluation:
    """Convert a result to an event for ``log_event``, while the run is in progress."""
    return dg.AssetCheckEvaluation(
        keys.of(verdict.asset), verdict.name, verdict.passed, verdict.metadata, severity=verdict.severity,
        description=verdict.description,
    )  # fmt: skip


def log_check(context: Any, keys: AssetKeys, verdict: CheckResult) -> None:
    """Log a result in the context of an op or asset, while the run is in progress."""
    context.log_event(as_evaluation(keys, verdict))  # accepts it, against its type hints


def as_result(keys: AssetKeys, verdict: CheckResult) -> dg.AssetCheckResult:
    """Convert a result to the ``AssetCheckResult`` that the check's own op yields at the end of a run."""
    return dg.AssetCheckResult(
        passed=verdict.passed, asset_key=keys.of(verdict.asset), check_name=verdict.name,
        metadata=verdict.metadata, severity=verdict.severity, description=verdict.description,
    )  # fmt: skip


def status_verdict(pipeline: str, result: RunResult | None) -> CheckResult:
    """Return the check ``status``. ``result``: result of the run; None while it is in progress."""
    if result is None or result.error is None or result.error.code in NO_FAILURE:
        # Dagster stores plain texts only
        status = str(PipelineStatus.RUNNING if result is None else result.status)
        return CheckResult(STATUS, True, status, {"status": status})
    verdict = failed_verdict(pipeline, result.status, result.error, result.restart)
    if result.story is None:
        return verdict
    story = {"since": dg.MetadataValue.timestamp(result.story.since_ns / 1e9), "safe": result.story.safe}
    return replace(verdict, metadata={**verdict.metadata, **story})


def start_command(pipeline: str) -> str:
    """Return the command that starts a failed pipeline."""
    return f"conduit-dagster pipelines start {shlex.quote(pipeline)}"


def failed_verdict(
    pipeline: str, status: PipelineStatus, error: ConduitError, restart: PendingRestart | None
) -> CheckResult:
    """Return the check ``status`` of a failed pipeline: error, fix, and the command to enter."""
    command = start_command(pipeline)
    facts: dict[str, Any] = {"status": str(status), "error_code": error.code, "error": error.message}
    facts |= {name: value for name in ("node", "place", "fix") if (value := getattr(error, name))}
    facts["command"] = command
    texts = [f"{status}: {error.message}"]
    if restart is not None:
        facts |= {"attempt": restart.attempt, "next_restart_at": dg.MetadataValue.timestamp(restart.at_ns / 1e9)}
        texts.append(f"restart {restart.attempt} after {restart.delay:g} s")
    if error.fix:
        texts.append(f"fix: {error.fix}")
    texts.append(f"{'to restart it now' if restart is not None else 'then'}: {command}, or the job {GROUP}__start")
    severity = dg.AssetCheckSeverity.WARN if restart is not None else dg.AssetCheckSeverity.ERROR
    return CheckResult(STATUS, False, "; ".join(texts), facts, severity)


def stopped_verdict() -> CheckResult:
    """Return the check ``status`` of a pipeline that a user stopped in another process."""
    status = str(PipelineStatus.STOPPED)
    return CheckResult(STATUS, True, f"{status} by the user", {"status": status})


def status_observation(keys: AssetKeys, verdict: CheckResult) -> dg.AssetObservation:
    """Return the check ``status`` as an observation of the acks, so that the newest one never shows an old restart."""
    return dg.AssetObservation(keys.of(ACKS), description=verdict.description, metadata=verdict.metadata)


AssetEvent = dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation


def status_events(keys: AssetKeys, verdict: CheckResult) -> list[AssetEvent]:
    """Return the events that show a status which no run could report: the check, and the observation of the acks."""
    return [as_evaluation(keys, verdict), status_observation(keys, verdict)]


def letter_verdicts(bound: BoundPipeline, letters: int) -> Iterator[CheckResult]:
    """Yield the results of the checks that follow from the number of open dead letters alone."""
    text = f"{letters} open: conduit-dagster dlq list {bound.id}" if letters else "none is open"
    yield CheckResult(NO_DEAD_LETTERS, letters == 0, text, {"open": letters})
    yield _open_dead_letters(letters, bound.config.dead_letter_queue)


def _open_dead_letters(letters: int, queue: DeadLetterQueue) -> CheckResult:
    limit = queue.open_limit
    if limit is None:
        return CheckResult(OPEN_DEAD_LETTERS, True, f"{letters} open; the file gives no open-limit", {"open": letters})
    text = f"{letters} open; open-limit is {limit}"
    return CheckResult(OPEN_DEAD_LETTERS, letters <= limit, text, {"open": letters, "limit": limit})


def _nack_rate(snapshot: RunSnapshot, queue: DeadLetterQueue, error: ConduitError | None) -> CheckResult:
    nacked, read = snapshot.progress.nacked, snapshot.progress.read
    rate = nacked / read if read else 0.0
    metadata = {"nack_rate": rate, "records_nacked": nacked, "records_read": read}
    if not queue.window_size:
        return CheckResult(NACK_RATE, True, "no limit: window-size is 0, so every nack is taken", metadata)
    limit = queue.window_nack_threshold / queue.window_size
    exceeded = error is not None and error.code == "nacks.threshold_exceeded"
    text = "the threshold was exceeded" if exceeded else f"{rate:.2%} nacked; the limit is {limit:.2%}"
    return CheckResult(NACK_RATE, rate <= limit and not exceeded, text, {**metadata, "limit": limit})


def _ack_lag(snapshot: RunSnapshot, max_wait: float, error: ConduitError | None) -> CheckResult:
    metadata: dict[str, Any] = {f"lag_{name}": f"{amount} {unit}" for name, (amount, unit) in snapshot.lag.items()}
    metadata |= {"logged_undelivered": snapshot.logged} if snapshot.logged else {}
    metadata |= {"seconds_waiting": round(snapshot.waited, 1) if snapshot.waiting else 0.0}
    if not snapshot.waiting:
        text = "nothing waits" if snapshot.lag else "lag unknown: no source reports it"
        return CheckResult(ACK_LAG, True, text, metadata)
    # a run that was refused because another one holds the lease proves nothing about the waiting records
    if error is not None and not error.code.startswith("lease."):
        return CheckResult(ACK_LAG, False, "records wait, and the run has failed", metadata)
    text = f"records wait, for {snapshot.waited:.1f} s without an ack; the limit is {max_wait:g} s"
    return CheckResult(ACK_LAG, snapshot.waited <= max_wait, text, metadata)


def _no_offset_gap(snapshot: RunSnapshot) -> CheckResult:
    text = "; ".join(snapshot.gaps) or "every step begins where the one before it ended"
    # records in a gap are never read, so they are lost
    severity = dg.AssetCheckSeverity.ERROR
    return CheckResult(NO_OFFSET_GAP, not snapshot.gaps, text, {"gaps": len(snapshot.gaps)}, severity)


READABLE = "readable"
READABLE_SOURCES = f"{GROUP}__readable_sources"
"""Op of these checks."""
_TELLS = "it reports how much waits"
_ERROR = dg.AssetCheckSeverity.ERROR


def source_checks(catalogue: Catalogue, every: Iterable[AssetKeys]) -> list[dg.AssetChecksDefinition]:
    """Return the checks of the sources' assets, as one definition; none without sources. ``every``: by pipeline.

    Executing them queries each source for its lag, also while its pipeline runs: it reads no records, moves nothing and
    needs no Spark. A source without a lag gets a warning.
    """
    said = "The source can be read: the newest run read from it, or it reports how much waits."
    sources = dict(_places(catalogue, every))
    if not sources:
        return []
    specs = [dg.AssetCheckSpec(READABLE, asset=key, description=said) for key in sources]

    @dg.multi_asset_check(name=READABLE_SOURCES, specs=specs, can_subset=True)
    def check(context: dg.AssetCheckExecutionContext, conduit_state: StateResource) -> Iterator[dg.AssetCheckResult]:
        now = open_catalogue(conduit_state.project)
        for key in sorted(context.selected_asset_check_keys):
            keys, source = sources[key.asset_key]
            yield as_result(keys, _asked(now.get(keys.pipeline), source, conduit_state))

    return [check]


def _places(catalogue: Catalogue, every: Iterable[AssetKeys]) -> Iterator[tuple[dg.AssetKey, tuple[AssetKeys, str]]]:
    """Yield each source's key, with the keys of its pipeline and its id."""
    for keys in every:
        bound = catalogue.get(keys.pipeline)
        for source in () if bound is None else bound.config.sources:
            yield keys.of(source.id), (keys, source.id)


def readable_verdicts(
    bound: BoundPipeline, snapshot: RunSnapshot, result: RunResult | None = None
) -> Iterator[CheckResult]:
    """Yield the result for each source that the run has one for. ``result``: result of the run.

    A run that was stopped, or failed elsewhere, before it reached a source proves nothing about it.
    """
    error = None if result is None else result.error
    for source in bound.config.sources:
        if error is not None and error.node == node_id(bound.id, source.id):
            yield _unreadable(source.id, error)
        elif snapshot.progress.sources.get(source.id) or (result is not None and result.drained):
            yield _readable(source.id, "it was read")
        elif error is None and result is None and source.id in snapshot.lag:
            yield _readable(source.id, _TELLS)


def _readable(source: str, text: str, **facts: Any) -> CheckResult:
    return CheckResult(READABLE, True, text, facts, source=source)


def _unreadable(source: str, error: ConduitError) -> CheckResult:
    text = f"{error.message}; fix: {error.fix}" if error.fix else error.message
    facts: dict[str, Any] = {"error_code": error.code, "error": error.message, "place": error.place, "fix": error.fix}
    return CheckResult(READABLE, False, text, {name: value for name, value in facts.items() if value}, _ERROR, source)


def _asked(bound: BoundPipeline | None, source: str, state: StateResource) -> CheckResult:
    """Query the source for its lag: the only query allowed while the pipeline may run elsewhere."""
    node = None if bound is None else next((one for one in bound.compiled.sources if one.id == source), None)
    if bound is None or node is None:
        text = "its pipeline can't run, or has no such source any more: conduit-dagster validate shows the mistakes"
        return CheckResult(READABLE, False, text, {}, _ERROR, source)
    try:
        database = state.database
        lag = answer_within(node.source, lambda: _lag(bound, node, database), BY_HAND)
    except ConduitError as error:
        return _unreadable(source, error)
    except TimeoutError as error:
        return CheckResult(READABLE, False, f"it hangs when asked how much waits: {error}", {}, _ERROR, source)
    if lag is None:
        return CheckResult(READABLE, False, "it can't report how much waits: only a run finds out", {}, source=source)
    return _readable(source, _TELLS, **{f"lag_{node.source.lag_unit}": lag})


def _lag(bound: BoundPipeline, node: SourceNode, database: sa.Engine) -> int | None:
    """Return the source's lag, and close the pipeline's sources: a connector that hangs may do so there as well."""
    try:
        known = {row["id"]: row["position"] for row in source_rows(database, bound.id)}
        attach_kept_to_look(bound.compiled, database)
        return blamed(node.node, node.lag, known)
    finally:
        close_sources(bound.compiled)
