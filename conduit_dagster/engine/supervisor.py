"""Runs one pipeline from its lease to its last status."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.engine.appender import Appender
from conduit_dagster.engine.assembly import make_loop
from conduit_dagster.engine.bounded import Hung, bounded, within
from conduit_dagster.engine.dead_letters.replaying import with_open_replay
from conduit_dagster.engine.error_context import blamed
from conduit_dagster.engine.in_flight import InFlightSteps
from conduit_dagster.engine.loop import StepLoop
from conduit_dagster.engine.planner import BoundPipeline
from conduit_dagster.engine.recover import start_up
from conduit_dagster.engine.registering import attach_logs, fence
from conduit_dagster.engine.report import RunProgress, RunResult, StepReport
from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.engine.run_status import AWAY, SOMEBODY, RunLife, RunOrigin, unrecorded
from conduit_dagster.engine.source_acks import SourceAcks
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.engine.watch import watching
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.recovery.pipeline_status import PipelineStatus
from conduit_dagster.sdk import Limit
from conduit_dagster.spark.sql.asking import open_with
from conduit_dagster.state.database import unreachable
from conduit_dagster.state.lease import Lease, acquire
from conduit_dagster.state.store import PipelineStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL = 0.05
_RECORDING = 0.3
"""Seconds for recording the end of a run that hangs."""


@dataclass(frozen=True)
class RunOptions:
    """How to run."""

    staging: str
    """URL of the folder for staging, shared by driver and workers."""
    drain: bool = False
    """End when the sources are drained up to what they held at the start."""
    lease_seconds: float = 10.0
    parallelism: int | None = None
    """Tasks per step; None asks Spark."""
    patience: float = 30.0
    """Seconds to wait for a state store that does not answer, before the run stops."""
    log: str = ""
    """URL of the folder for the commit log; empty: in the staging folder."""
    about: RunOrigin = SOMEBODY
    """As what the run begins, and what follows when it fails."""

    @property
    def log_url(self) -> str:
        """Where the commit log lies."""
        return self.log or f"{self.staging.rstrip('/')}/~log"


def run_pipeline(
    bound: BoundPipeline,
    spark: SparkSession | Callable[[], SparkSession],
    database: sa.Engine,
    options: RunOptions,
    stop: StopFlag,
    observe: Callable[[StepReport, RunProgress], None] = lambda step, progress: None,
    progress: RunProgress | None = None,
) -> RunResult:
    """Runs until stopped, drained or failed; never raises what the pipeline itself did wrong.

    The first error is in the result and in the state store. ``spark`` may be a function that is called under the
    lease, so that its failure is one of the pipeline; ``progress`` that of earlier attempts.
    """
    attempt = _Attempt(bound, spark, database, options, stop, observe, progress or RunProgress())
    try:
        return bounded(attempt.run, stop, bound.config.delivery.shutdown_timeout, f"run-{bound.id}")
    except Hung as hung:
        return attempt.give_up(hung.where)


class _Attempt:
    """One run, from its lease on, in a thread that may have to be left behind."""

    def __init__(
        self,
        bound: BoundPipeline,
        spark: SparkSession | Callable[[], SparkSession],
        database: sa.Engine,
        options: RunOptions,
        stop: StopFlag,
        observe: Callable[[StepReport, RunProgress], None],
        progress: RunProgress,
    ) -> None:
        self._bound, self._spark, self._database, self._options = bound, spark, database, options
        self._stop, self._observe, self._progress = stop, observe, progress
        self._life: RunLife | None = None
        self._lease: Lease | None = None
        self._run: _Run | None = None

    def run(self) -> RunResult:
        bound, about, database, progress = self._bound, self._options.about, self._database, self._progress
        try:
            lease = acquire(database, bound.id, self._options.lease_seconds, lambda: self._stop.requested)
        except SQLAlchemyError as error:
            return unrecorded(bound.id, unreachable(database, error, AWAY), about.recovery, about.past, progress)
        except ConduitError as error:
            return unrecorded(bound.id, error, about.recovery, about.past, progress)
        reached("after-lease", bound.id)
        store = PipelineStore(database, lease, self._options.patience, lambda: self._stop.forced)
        life = RunLife(bound.id, store, about, self._stop, progress)
        self._life, self._lease = life, lease
        given = self._spark
        opener = given if callable(given) else lambda: given
        run = _Run(bound, opener, store, lease, self._options, self._stop, life, self._observe)
        self._run = run
        try:
            return run.run()
        finally:
            run.close()
            lease.release()

    def give_up(self, where: str) -> RunResult:
        """The run hangs: what it has decided is finished by the next one; its thread can't decide anything more."""
        if self._life is None or self._lease is None or self._run is None:
            return RunResult(
                self._bound.id, PipelineStatus.STOPPED, self._stop.reason, None, self._progress, None, where
            )
        result, last = self._life.hung(where)
        # should it go on one day, it ends at the first place that looks
        self._stop.force()
        self._run.leave()
        lease = self._lease
        # the store may be what hangs: then the next run finds a dead owner, as after a kill
        within(lambda: lease.abandon(last), _RECORDING, f"end-{self._bound.id}")
        return result


class _Run:
    def __init__(
        self,
        bound: BoundPipeline,
        opener: Callable[[], SparkSession],
        store: PipelineStore,
        lease: Lease,
        options: RunOptions,
        stop: StopFlag,
        life: RunLife,
        observe: Callable[[StepReport, RunProgress], None],
    ) -> None:
        self._bound, self._opener, self._store, self._options = bound, opener, store, options
        self._lease, self._stop, self._life, self._observe = lease, stop, life, observe
        self._progress = life.progress
        self._pipeline = bound.compiled
        self.acks = SourceAcks(self._pipeline)
        self._unwatch: Callable[[], None] = lambda: None

    def leave(self) -> None:
        """The thread of this run hangs and is left to itself: it acks nothing more, and cancels no job of the next."""
        self.acks.refuse()
        self._unwatch()

    def close(self) -> None:
        """Closes the pipeline's connectors."""
        self.acks.close()
        for destination in self._pipeline.consumers().values():
            destination.close()

    def run(self) -> RunResult:
        try:
            if not self._life.begin(self._bound.file, self._bound.digest):
                return self._life.superseded()
            self._jobs = Jobs(self._opener(), self._bound.id, self._store.epoch)
            # before a direct destination is sent anything: a sender of the owner before may still be at work
            self._jobs.end_those_of(self._lease.before.get("spark", {}))
            self._store.tell(spark=self._jobs.whereabouts())
            # processors of the dead-letter queue run here as well
            open_with(self._opener)
            self._bound = with_open_replay(self._bound, self._store.load())
            self._pipeline = self._bound.compiled
            self.acks = SourceAcks(self._pipeline)
            attach_logs(self._pipeline, self._store, self._options.log_url)
            fence(self._pipeline, self._store)
            self._move()
        except Exception as error:  # noqa: BLE001  # the last line of defence: the status must say how the run ended
            return self._life.failed(error)
        return self._life.stopped()

    # -- steps --------------------------------------------------------------------------------------------------

    def _move(self) -> None:
        depth = self._bound.config.delivery.max_in_flight
        timeout = self._bound.config.delivery.shutdown_timeout
        with watching(self._stop, self._jobs, timeout, self._store.engine, self._bound.id) as ended:
            self._unwatch = ended.set
            appender = self._appender()
            loop = start_up(self._pipeline, self._store, lambda: self._loop(appender))
            horizons = self._horizons() if self._options.drain else None
            with InFlightSteps(loop, depth, self._goes_on) as flight:
                try:
                    self._fly(loop, flight, appender, horizons)
                    flight.land()
                finally:
                    self._life.failed_step = flight.failed_step

    def _fly(
        self, loop: StepLoop, flight: InFlightSteps, appender: Appender | None, horizons: dict[str, Any] | None
    ) -> None:
        while not self._stop.requested:
            if appender is not None and appender.rolled:
                flight.land()
                appender.compact()
            try:
                plan = loop.plan_next(horizons)
            except Exception:
                flight.land()  # what is on its way is delivered before the failure ends the run
                raise
            if plan is not None:
                flight.take(plan)
            # nothing new is read before everything in the log is on its way
            elif not loop.log_first() and (self._options.drain or self._stop.wait(_POLL)):
                break
            flight.look()
            self._life.look()

    def _appender(self) -> Appender | None:
        if self._pipeline.program.log != "records":
            return None
        delivery = self._bound.config.delivery
        return Appender(
            self._pipeline,
            self._store,
            self._jobs,
            self._options.log_url,
            self._slots,
            Limit(delivery.batch_size, delivery.batch_bytes),
            delivery.log_segment_size,
        )

    def _goes_on(self) -> bool:
        """Whether a step that was staged ahead may still be prepared: a stop leaves it the shutdown timeout."""
        since = self._stop.since
        limit = self._bound.config.delivery.shutdown_timeout
        return not self._stop.forced and (since is None or time.monotonic() - since < limit)

    def _horizons(self) -> dict[str, Any]:
        sources = self._pipeline.sources
        return {inlet.id: blamed(f"{self._bound.id}:{inlet.id}", inlet.source.horizon) for inlet in sources}

    @property
    def _slots(self) -> int:
        return self._options.parallelism or self._jobs.slots()

    def _loop(self, appender: Appender | None) -> StepLoop:
        staging, slots = self._options.staging, self._slots
        log = self._options.log_url
        return make_loop(self._bound, self._store, self._jobs, staging, log, slots, appender, self._report, self.acks)

    def _report(self, step: StepReport) -> None:
        self._progress.add(step)
        self._life.moved(step)
        self._observe(step, self._progress)
