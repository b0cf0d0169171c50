"""Body of the op that runs a pipeline."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import dagster as dg
import structlog
from pydantic import Field, TypeAdapter, ValidationError

from conduit_dagster.assets.asset_checks import start_command
from conduit_dagster.assets.events import Observer
from conduit_dagster.assets.names import NO_RETRIES
from conduit_dagster.assets.run_origin import is_own, origin_of, restart_at
from conduit_dagster.assets.run_reporter import Intervals, RunReporter
from conduit_dagster.assets.stopping import ExitWatchdog, Signals, StopWatcher
from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.config.project import Project
from conduit_dagster.config.scalars import PositiveDuration
from conduit_dagster.engine.bound_pipeline import BoundPipeline, open_catalogue
from conduit_dagster.engine.bounded import GRACE, RECORDING
from conduit_dagster.engine.report import RunResult
from conduit_dagster.engine.restart_loop import RestartLoop
from conduit_dagster.engine.run_options import RunOptions, RunRequest
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.lineage.openlineage import listener_of
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.resources.spark_resource import SparkSessionResource, StateResource
from conduit_dagster.secret_values import hide

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger("conduit.dagster")
_DEFAULTS = {"materialize_every": "30s", "end_after": "24h", "max_ack_lag": "5m"}
_DRAIN = (
    "End when the sources are drained. Without it the pipeline's own job does what its file says, and any "
    "other run drains."
)
_EVERY = "How often assets are materialised at most; else CONDUIT_MATERIALIZE_EVERY, else 30s."
_END = (
    "When a run ends to be started anew, since Dagster keeps about 3 KB for every event of a run; else "
    "CONDUIT_END_AFTER, else 24h."
)
_LAG = (
    "How long records may wait for an ack before the check ack_lag fails; else delivery.max-lag of its file, "
    "else CONDUIT_MAX_ACK_LAG, else 5m."
)
_duration: TypeAdapter[float] = TypeAdapter(PositiveDuration)


class RunConfig(dg.Config):
    """Config of one run. Durations as in pipeline files: ``30s``, ``5m``."""

    drain: bool | None = Field(default=None, description=_DRAIN)
    materialize_every: str | None = Field(default=None, description=_EVERY)
    end_after: str | None = Field(default=None, description=_END)
    max_ack_lag: str | None = Field(default=None, description=_LAG)

    def seconds(self, name: str, of_file: float | None = None) -> float:
        """Return the duration in a field, in seconds; otherwise ``of_file``, then the environment's, then the default.

        Raises ``FatalError`` for an invalid one.
        """
        own, variable = cast("str | None", getattr(self, name)), f"CONDUIT_{name.upper()}"
        if not own and of_file is not None:
            return of_file
        text = own or os.environ.get(variable) or _DEFAULTS[name]
        try:
            return _duration.validate_python(text)
        except ValidationError as error:
            raise FatalError(
                f"{name} is not a duration: {text}",
                code="run.config",
                fix=f"set {name} in the run's config, or {variable}, to a duration such as {_DEFAULTS[name]}",
            ) from error


_POLL = 0.1
_AFTER_STOP = GRACE + RECORDING + 1.5
"""Seconds that a stop may take after the shutdown timeout: the engine's, and those of Dagster's side."""


class LoadedPipeline(NamedTuple):
    """A pipeline as loaded with its code location."""

    id: str
    file: str
    keys: AssetKeys


def run_in_dagster(
    context: dg.AssetExecutionContext,
    config: RunConfig,
    loaded: LoadedPipeline,
    spark: SparkSessionResource,
    state: StateResource,
) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
    """Move records until stopped, drained or failed. Reads the file again: a change only needs a new run.

    The run succeeds if the pipeline ended by itself, after ``end_after`` or on a signal from the system; it is
    cancelled if a user terminated it; it fails with the pipeline's error, whose class is in the metadata. A run of
    another job, in which more may be waiting for the pipeline, also fails if that was stopped before it was drained.
    """
    _hide_in_logs()
    try:
        project, database = state.project, state.database
        bound = read_again(loaded.id, loaded.file, project)
        origin = origin_of(context, bound, project)
        chosen = RunOptions.of(project, _drains(context, config, bound), origin, listener_of(project))
        observer = Observer(bound, database)
        request = RunRequest(bound, database, chosen, StopFlag(), observer.observe)
        reporter = RunReporter(context, loaded.keys, observer, _intervals(config, bound))
        run = _Run(context, config.seconds("end_after"), request, reporter)
    except ConduitError as error:
        _forbid_retries(context, error)
        raise failure(error) from None
    yield from run.run(spark.spark_session)


def _forbid_retries(context: dg.AssetExecutionContext, error: ConduitError) -> None:
    """Keep Dagster's retries of runs off a fatal error, which none of them helps; they ignore error classes."""
    if error.fatal:
        context.instance.add_run_tags(context.run.run_id, NO_RETRIES)


def _intervals(config: RunConfig, bound: BoundPipeline) -> Intervals:
    max_lag = bound.config.delivery.max_lag
    kept = max_lag if bound.config.trigger.kind == "continuous" else None
    return Intervals(config.seconds("materialize_every"), config.seconds("max_ack_lag", max_lag), kept)


class _HidingRenderer(NamedTuple):
    """Renderer of log lines that masks secrets."""

    render: Callable[..., str]

    def __call__(self, *event: Any) -> str:
        return hide(self.render(*event))


def _hide_in_logs() -> None:
    """Mask secrets in log lines, which Dagster keeps as the step's output, unless the user has configured structlog."""
    processors = structlog.get_config()["processors"]
    # in place: loggers that are already bound keep this list
    if not structlog.is_configured() and not isinstance(processors[-1], _HidingRenderer):
        processors[-1] = _HidingRenderer(processors[-1])


INVALID = "pipeline.invalid"
"""Code of a run that could not begin because of the pipeline's file, or the project's settings."""


def read_again(pipeline: str, file: str, project: Project) -> BoundPipeline:
    """Return the pipeline as the project's files define it now. Raises ``FatalError`` if it can no longer run.

    Raises ``TransientError`` if the only problem is a failed provider of secrets.
    """
    catalogue = open_catalogue(project, [Path(file)])
    # another file may have it since the code location was loaded
    bound = catalogue.get(pipeline) or open_catalogue(project).get(pipeline)
    # settings with errors keep their defaults: a run would read and write elsewhere
    broken = [finding for finding in project.findings if finding.is_error]
    if bound is None or broken:
        found = broken or [finding for finding in catalogue.loaded.findings if finding.is_error]
        message = "\n".join(finding.render() for finding in found)
        if found and all(finding.code == "config.secret_failed" for finding in found):
            fix = "see what the provider needs if it goes on"
            raise TransientError(message, code="secrets.unavailable", place=file, fix=fix)
        message = message or f"there is no pipeline {pipeline} in {file} any more"
        fix = "fix the file and run again; after adding or removing pipelines reload the code location"
        raise FatalError(message, code=INVALID, place=file, fix=fix)
    if refusal := bound.refusal():
        raise refusal
    return bound


def operator_of(context: Any) -> str:
    """Return the user who launched the run of an op or asset, for the history."""
    run = context.run
    return run.tags.get("user", f"dagster run {run.run_id}")


def failure(error: ConduitError, result: RunResult | None = None) -> dg.Failure:
    """Return the error as a Dagster failure, without Dagster's own retries, which ignore error classes.

    ``result``: of the failed run, for its story.
    """
    restart, story = (None, None) if result is None else (result.restart, result.story)
    facts: dict[str, Any] = {
        "conduit/fatal": error.fatal,
        "conduit/error_code": error.code,
        "conduit/message": error.message,
        "conduit/node": error.node,
        "conduit/place": error.place,
        "conduit/fix": error.fix,
        "conduit/since": None if story is None else dg.MetadataValue.timestamp(story.since_ns / 1e9),
        "conduit/safe": None if story is None else story.safe,
        "conduit/command": None if result is None else start_command(result.pipeline),
        "conduit/status": None if result is None else str(result.status),
        "conduit/attempt": None if restart is None else restart.attempt,
        "conduit/next_restart_at": None if restart is None else dg.MetadataValue.timestamp(restart.at_ns / 1e9),
    }
    told = [] if story is None else [f"since {story.since}; {story.safe}"]
    description = "\n".join([error.message, *([error.fix] if error.fix else []), *told])
    metadata = {name: value for name, value in facts.items() if value is not None}
    return dg.Failure(description, metadata, allow_retries=False)


class _Run:
    def __init__(
        self, context: dg.AssetExecutionContext, end_after: float, request: RunRequest, reporter: RunReporter
    ) -> None:
        """``end_after``: seconds."""
        self._context, self._request, self._bound = context, request, request.bound
        self._end_after, self._reporter = end_after, reporter

    def run(self, spark: "SparkSession") -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
        stop = self._request.stop
        longest = self._bound.config.delivery.shutdown_timeout + _AFTER_STOP
        with Signals() as signals, ExitWatchdog(stop, longest):
            watcher = StopWatcher((self._context.instance, self._context.run.run_id), stop, signals, self._end_after)
            self._reporter.begin()
            result = self._move(spark, watcher)
            try:
                yield from self._reporter.end(result)
            except ConduitError as lost:
                log.warning("the last events could not be written", pipeline=self._bound.id, cause=str(lost))
                self._conclude(result, watcher)  # what ended the run comes first
                raise failure(lost) from None
        self._conclude(result, watcher)

    def _move(self, spark: "SparkSession", watcher: StopWatcher) -> RunResult:
        """Run the engine in a separate thread, so that this one is free for signals and for Dagster."""
        with ThreadPoolExecutor(1, "pipeline") as pool:
            restarts = RestartLoop(self._request)
            running = pool.submit(restarts.once, lambda: spark, restart_at(self._context.run))
            try:
                self._attend(running, watcher)
            finally:
                self._request.stop.request("system")
            return running.result()

    def _attend(self, running: Future[RunResult], watcher: StopWatcher) -> None:
        while not wait([running], _POLL).done:
            watcher.tick()
            self._reporter.tick()

    def _conclude(self, result: RunResult, watcher: StopWatcher) -> None:
        text = f"pipeline {result.pipeline}: {result.ending}"
        self._context.log.info(text)
        # the signal has ended this pipeline; in a run of more than that, the steps behind it would go on
        if watcher.terminated or (watcher.is_interrupted and not self._is_own):
            if result.error is not None:
                self._context.log.error(result.error.message)
            raise dg.DagsterExecutionInterruptedError
        if result.error is not None:
            _forbid_retries(self._context, result.error)
            raise failure(result.error, result) from None
        # stopped before it was drained, where what is behind it waits for all of it
        is_cut_short = self._request.options.drain and not result.drained and not self._is_own
        if is_cut_short and not watcher.is_over:
            cut_short = FatalError(
                f"pipeline {result.pipeline} was stopped before its sources were drained",
                code="pipeline.cut_short",
                fix="what is behind it in this run was left out: run it again",
            )
            _forbid_retries(self._context, cut_short)
            raise failure(cut_short)

    @property
    def _is_own(self) -> bool:
        return is_own(self._context.run, self._bound)


def _drains(context: dg.AssetExecutionContext, config: RunConfig, bound: BoundPipeline) -> bool:
    """Return whether the run ends when drained: by default only the pipeline's own job may keep running."""
    if config.drain is not None:
        return config.drain
    return not is_own(context.run, bound) or bound.config.trigger.kind != "continuous"
