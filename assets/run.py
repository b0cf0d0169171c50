"""What a run of a pipeline does: the body of its op."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import sqlalchemy as sa

from assets.journal import Journal
from assets.look import Observer
from assets.names import job_name
from assets.options import RunConfig
from assets.restart import circumstances, restart_at
from assets.stopping import LastResort, Signals, Warden
from conduit_dagster.config.project import Project
from conduit_dagster.engine.catalogue import open_catalogue
from conduit_dagster.engine.keeper import Keeper
from conduit_dagster.engine.planner import BoundPipeline
from conduit_dagster.engine.report import Restart, RunResult
from conduit_dagster.engine.run_life import SOMEBODY, Circumstances
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.engine.supervisor import RunOptions
from conduit_dagster.recovery.errors import ConduitError, FatalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL = 0.1
_AFTER_STOP = 1.5
"""Seconds that Dagster's side of a stop may take after the shutdown timeout."""


def run_in_dagster(
    context: dg.AssetExecutionContext,
    config: RunConfig,
    pipeline: str,
    file: str,
    project: Project,
    spark: SparkSession,
    database: sa.Engine,
) -> Iterator[dg.AssetCheckResult]:
    """Moves records until stopped, drained or failed. Reads the file again: changes need a new run only.

    Succeeds when the pipeline stopped by itself, at the day's end or by a signal of the system; is cancelled
    when somebody terminated the run; fails with the pipeline's error, whose class is in the metadata.
    """
    try:
        bound = read_again(pipeline, file, project)
        run = _Run(context, config, bound, project, database)
    except ConduitError as error:
        raise failure(error, "") from None
    yield from run.run(spark)


def read_again(pipeline: str, file: str, project: Project) -> BoundPipeline:
    """The pipeline as its file says now. Raises ``FatalError`` where it can't run any more."""
    catalogue = open_catalogue(project, [Path(file)])
    bound = catalogue.get(pipeline)
    if bound is None:
        errors = [finding.render() for finding in catalogue.loaded.findings if finding.is_error]
        message = "\n".join(errors) or f"there is no pipeline {pipeline} in {file} any more"
        fix = "mend the file and run again; after adding, moving or removing pipelines reload the code location"
        raise FatalError(message, code="pipeline.invalid", place=file, fix=fix)
    if refusal := bound.refusal():
        raise refusal
    return bound


def failure(error: ConduitError, status: str, restart: Restart | None = None) -> dg.Failure:
    """The error as Dagster keeps it, without Dagster's own retries: they know no classes of errors."""
    facts: dict[str, Any] = {
        "conduit/fatal": error.fatal,
        "conduit/error_code": error.code,
        "conduit/message": error.message,
        "conduit/node": error.node,
        "conduit/place": error.place,
        "conduit/fix": error.fix,
        "conduit/status": status or None,
        "conduit/attempt": None if restart is None else restart.attempt,
        "conduit/next_restart_at": None if restart is None else dg.MetadataValue.timestamp(restart.at_ns / 1e9),
    }
    description = f"{error.message}\n{error.fix}" if error.fix else error.message
    metadata = {name: value for name, value in facts.items() if value is not None}
    return dg.Failure(description, metadata, allow_retries=False)


class _Run:
    def __init__(
        self,
        context: dg.AssetExecutionContext,
        config: RunConfig,
        bound: BoundPipeline,
        project: Project,
        database: sa.Engine,
    ) -> None:
        self._context, self._bound, self._database = context, bound, database
        self._options = options(project, _drains(context, config, bound), circumstances(context, bound, project))
        self._end_after = config.seconds("end_after")
        self._observer = Observer(bound, database)
        self._journal = Journal(
            context, bound, self._observer, config.seconds("materialize_every"), config.seconds("max_ack_lag")
        )

    def run(self, spark: SparkSession) -> Iterator[dg.AssetCheckResult]:
        stop = StopFlag()
        longest = self._bound.config.delivery.shutdown_timeout + _AFTER_STOP
        with Signals() as signals, LastResort(signals, longest):
            warden = Warden(self._context.instance, self._context.run.run_id, stop, signals, self._end_after)
            self._journal.begin()
            result = self._move(spark, stop, warden)
            yield from self._journal.end(result)
        self._conclude(result, warden.terminated)

    def _move(self, spark: SparkSession, stop: StopFlag, warden: Warden) -> RunResult:
        """The engine in a thread of its own, so that this one is free for signals and for Dagster."""
        with ThreadPoolExecutor(1, "pipeline") as pool:
            keeper = Keeper(self._bound, self._database, self._options, stop, self._observer.observe)
            running = pool.submit(keeper.once, lambda: spark, restart_at(self._context.run))
            try:
                self._attend(running, warden)
            finally:
                stop.request("system")
            return running.result()

    def _attend(self, running: Future[RunResult], warden: Warden) -> None:
        while not wait([running], _POLL).done:
            warden.tick()
            self._journal.tick()

    def _conclude(self, result: RunResult, terminated: bool) -> None:
        text = f"pipeline {result.pipeline}: {result.status} {result.reason}".strip()
        self._context.log.info(text)
        if terminated:
            if result.error is not None:
                self._context.log.error(result.error.message)
            raise dg.DagsterExecutionInterruptedError
        if result.error is not None:
            raise failure(result.error, result.status, result.restart) from None


def _drains(context: dg.AssetExecutionContext, config: RunConfig, bound: BoundPipeline) -> bool:
    """Only the pipeline's own job runs on; whoever materialises the assets waits for an end."""
    if config.drain is not None:
        return config.drain
    is_own = context.run.job_name == job_name(bound.id)
    return not is_own or bound.config.trigger.kind != "continuous"


def options(project: Project, drain: bool = False, about: Circumstances = SOMEBODY) -> RunOptions:
    """How a project's pipelines run."""
    settings = project.settings
    return RunOptions(
        project.staging_url,
        drain,
        settings.state.lease,
        settings.spark.parallelism,
        log=project.log_url,
        about=about,
    )
