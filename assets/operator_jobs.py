"""Dagster jobs to start, stop, rewind and compact any pipeline of the project, each with a form for its config.

They belong to the project, not to a pipeline, which is a field of the form: a project with many pipelines has only four
of them. None has the tag ``conduit/pipeline``: a limit of one run per pipeline would queue a stop behind the run to
stop.
"""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import dagster as dg
import sqlalchemy as sa
from pydantic import Field
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.assets.asset_checks import log_check, stopped_verdict
from conduit_dagster.assets.names import ACKS, GROUP, NO_RETRIES, short
from conduit_dagster.assets.run_op import failure, operator_of
from conduit_dagster.assets.stopping import Interruptible
from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.engine.operate.logs import compact
from conduit_dagster.engine.operate.pipeline_lock import PipelineLock
from conduit_dagster.engine.operate.rewind import RewindTarget, only_target, rewind
from conduit_dagster.engine.operate.send_again import Resent, resent, send_again
from conduit_dagster.engine.operate.source_positions import moment
from conduit_dagster.engine.operate.subject import Subject, subject
from conduit_dagster.engine.operate.summaries import (
    compact_summary,
    rewind_summary,
    send_again_summary,
    start_summary,
    stop_summary,
)
from conduit_dagster.engine.run_status import AWAY
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.recovery.policy import PipelineStatus
from conduit_dagster.resources.spark_resource import StateResource, session_when_needed
from conduit_dagster.state.database import unreachable

_ACCEPT_NEW = "Take a state store that is empty or older than the project's last one: records are delivered again."
_DRY_RUN = "Only show what would change."
_PATIENCE = 10.0
"""Seconds after a signal for an operation to end; a stop that waits for its pipeline is given up then."""
_OPERATED = "conduit/operated"
"""Tag of a run: the pipeline that it operated on."""
Facts = dict[str, Any]


class OperatorConfig(dg.Config):
    """Config of every operator's job."""

    pipeline: str = Field(description="The pipeline's id, as in its file.")


class StartConfig(OperatorConfig):
    """Config of the job that starts a pipeline."""

    accept_new_state: bool = Field(default=False, description=_ACCEPT_NEW)


class StopConfig(OperatorConfig):
    """Config of the job that stops a pipeline."""

    force: bool = Field(default=False, description="Cancel the step at hand; the pipeline is then degraded.")


class RewindConfig(OperatorConfig):
    """Config of the job that rewinds a source: exactly one of the fields ``to_…``."""

    source: str | None = Field(default=None, description="The source; needed where there are several.")
    to_start: bool = Field(default=False, description="To the source's beginning, or that of its log.")
    to_offset: int | None = Field(default=None, description="The record with this offset comes next.")
    to_position: Any = Field(
        default=None, description="To a position, as the asset of the source or conduit-dagster positions show has it."
    )
    to_time: str | None = Field(
        default=None, description="What was logged since: 2h, 1d12h or 2026-08-02T10:00; with a log of records only."
    )
    into: str | None = Field(
        default=None, description="Only this destination is sent the records again; with a log of records only."
    )
    until_offset: int | None = Field(default=None, description="With into: the first record that is not sent again.")
    until_time: str | None = Field(default=None, description="With into: only what was logged before; as to_time.")
    force: bool = Field(
        default=False,
        description="Also forward: what lies between is never delivered. With into: give up what is left of a range.",
    )
    dry_run: bool = Field(default=False, description=_DRY_RUN)
    accept_new_state: bool = Field(default=False, description=_ACCEPT_NEW)

    def target(self) -> RewindTarget:
        """Return where the source is to continue. Raises ``FatalError`` (``usage.position``)."""
        named = [
            *([RewindTarget("start")] if self.to_start else []),
            *([RewindTarget("offset", self.to_offset)] if self.to_offset is not None else []),
            *([RewindTarget("position", self.to_position)] if self.to_position is not None else []),
            *([RewindTarget("time", moment(self.to_time, time.time_ns(), "to_time"))] if self.to_time else []),
        ]
        return only_target(named, "give one of to_start, to_offset, to_position, to_time")

    def resent(self) -> Resent | None:
        """Return the range to send one destination again; None if for all. Raises ``FatalError`` (``usage.*``)."""
        ends = [
            *([RewindTarget("offset", self.until_offset)] if self.until_offset is not None else []),
            *([RewindTarget("time", moment(self.until_time, time.time_ns(), "until_time"))] if self.until_time else []),
        ]
        return resent(self.into, self.target(), ends, "until_offset and until_time")


class CompactConfig(OperatorConfig):
    """Config of the job that compacts the commit log."""

    source: str | None = Field(default=None, description="Only the log of this source.")
    dry_run: bool = Field(default=False, description=_DRY_RUN)


class _Reports:
    """Outcomes, shown in the run and at the pipeline's assets."""

    def __init__(self, keys: Mapping[str, AssetKeys]) -> None:
        """``keys``: asset keys of each pipeline, by its id."""
        self._keys = keys

    def of(self, pipeline: str) -> AssetKeys:
        return self._keys.get(pipeline) or AssetKeys(pipeline)

    def report(self, context: dg.OpExecutionContext, one: Subject, asset: str, text: str, facts: Facts) -> None:
        """Show the outcome in the run and, unless it was a dry run, as an observation of the pipeline's asset."""
        context.log.info(text)
        shown: Facts = {"summary": text, "facts": dg.MetadataValue.json(facts)}
        context.add_output_metadata(shown)
        # without its file the pipeline has no assets
        if one.bound is not None and not facts.get("dry_run"):
            about = {**shown, "by": operator_of(context)}
            context.log_event(dg.AssetObservation(self.of(one.id).of(asset), description=text, metadata=about))


def _interruptible(work: Callable[..., None]) -> Callable[..., None]:
    """Make a function an op's body, which a signal ends between its steps only (:class:`Interruptible`)."""

    @wraps(work)
    def run(context: dg.OpExecutionContext, config: OperatorConfig, conduit_state: StateResource) -> None:
        with Interruptible(_PATIENCE) as running:
            running.run(config.pipeline, lambda: work(context, config, conduit_state))

    return run


def _start_op(reports: _Reports) -> dg.OpDefinition:
    @dg.op(name=f"{GROUP}__start_pipeline")
    @_interruptible
    def start_pipeline(context: dg.OpExecutionContext, config: StartConfig, conduit_state: StateResource) -> None:
        """Request a start: the lifecycle sensor launches the run."""
        with _operating(context, config, conduit_state, config.accept_new_state) as one:
            asked = one.start(operator_of(context))
            reports.report(context, one, ACKS, start_summary(one.id, asked), {"asked": asked})

    return start_pipeline


def _stop_op(reports: _Reports) -> dg.OpDefinition:
    @dg.op(name=f"{GROUP}__stop_pipeline")
    @_interruptible
    def stop_pipeline(context: dg.OpExecutionContext, config: StopConfig, conduit_state: StateResource) -> None:
        """Stop a pipeline wherever it runs, and wait for its end."""
        with _operating(context, config, conduit_state) as one:
            stopped = one.stop(operator_of(context), config.force)
            reports.report(context, one, ACKS, stop_summary(one.id, stopped, one.status), {"stopped": stopped})
            if one.bound is not None and one.status == PipelineStatus.STOPPED:
                # a pending restart is cancelled as well
                log_check(context, reports.of(one.id), stopped_verdict())

    return stop_pipeline


def _rewind_op(reports: _Reports) -> dg.OpDefinition:
    @dg.op(name=f"{GROUP}__rewind_source")
    @_interruptible
    def rewind_source(context: dg.OpExecutionContext, config: RewindConfig, conduit_state: StateResource) -> None:
        """Continue a source from another position."""
        with _operating(context, config, conduit_state, config.accept_new_state) as one:
            target, wanted = config.target(), config.resent()
            with _held(context, conduit_state, one) as held:
                if wanted is None:
                    facts = rewind(*held, config.source, target, config.force, config.dry_run)
                else:
                    facts = send_again(*held, config.source, wanted, config.force, config.dry_run)
            facts |= {"dry_run": config.dry_run}
            asset, summary = ("source", rewind_summary) if wanted is None else ("destination", send_again_summary)
            reports.report(context, one, facts[asset], summary(facts), facts)

    return rewind_source


def _compact_op(reports: _Reports) -> dg.OpDefinition:
    @dg.op(name=f"{GROUP}__compact_log")
    @_interruptible
    def compact_log(context: dg.OpExecutionContext, config: CompactConfig, conduit_state: StateResource) -> None:
        """Remove entries from the commit log that every consumer has handled."""
        with _operating(context, config, conduit_state) as one:
            with _held(context, conduit_state, one) as held:
                logs = compact(*held, config.source, config.dry_run)
            facts: Facts = {"pipeline": one.id, "logs": logs, "dry_run": config.dry_run}
            reports.report(context, one, ACKS, compact_summary(facts), facts)

    return compact_log


@contextmanager
def _held(
    context: dg.OpExecutionContext, state: StateResource, one: Subject
) -> Generator[tuple[PipelineLock, sa.Engine]]:
    """Hold the pipeline's lease; yield it and the store. Spark is opened only if needed."""
    with session_when_needed(context, state.root) as spark, one.locked(spark, operator_of(context)) as held:
        yield held


@contextmanager
def _operating(
    context: dg.OpExecutionContext, config: OperatorConfig, state: StateResource, accept_new: bool = False
) -> Generator[Subject]:
    """Yield the pipeline that the form names; errors end the run with code, message and fix, without a traceback."""
    try:
        project = state.project.accepting_new_state(accept_new)
        one = subject(project, config.pipeline)
        context.instance.add_run_tags(context.run_id, {_OPERATED: short(one.id)})
        try:
            yield one
        finally:
            if one.store is not None:
                one.store.dispose()
    except ConduitError as error:
        raise failure(error) from None
    except SQLAlchemyError as error:
        raise failure(unreachable(None, error, AWAY)) from None


_JOBS = {
    "start": (_start_op, "Starts a pipeline that was stopped, is degraded, or waits for its restart."),
    "stop": (_stop_op, "Stops a pipeline, waits for its end, and cancels a pending restart."),
    "rewind": (
        _rewind_op,
        "Makes a source of a stopped pipeline continue from its start, an offset, a position or a time: what follows "
        "is read and delivered again, or, with into, sent again to one destination from the log. Stop the pipeline "
        "first, start it afterwards.",
    ),
    "compact": (
        _compact_op,
        "Removes from the commit log of a stopped pipeline what every consumer has handled; runs do it by themselves "
        "when a segment is full.",
    ),
}


def operator_jobs(keys: Mapping[str, AssetKeys]) -> list[dg.JobDefinition]:
    """Return the jobs, named ``conduit__start`` and so on. They only need the resource ``conduit_state``.

    ``keys``: asset keys of each pipeline, by its id.
    """
    reports = _Reports(keys)
    return [_job(name, op(reports), text) for name, (op, text) in _JOBS.items()]


def _job(name: str, op: dg.OpDefinition, text: str) -> dg.JobDefinition:
    @dg.job(
        name=f"{GROUP}__{name}",
        description=text,
        tags={"conduit/operation": name, **NO_RETRIES},
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        op()

    return job
