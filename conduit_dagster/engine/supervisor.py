"""One run of a pipeline, from its lease to its final status."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.engine.appender import Appender
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.bounded import RECORDING, RunHung, Watch, bounded, watching, within
from conduit_dagster.engine.compiled_pipeline import close_connectors
from conduit_dagster.engine.loop import InFlightSteps, StepLoop, make_context
from conduit_dagster.engine.open_work import require_no_memory, with_open_work
from conduit_dagster.engine.pipeline_folders import claim_folders, end_deletion
from conduit_dagster.engine.recover import acknowledge, resume_sources, start_up
from conduit_dagster.engine.registering import attach_kept, attach_logs, fence
from conduit_dagster.engine.report import RunProgress, RunResult, StepReport
from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.engine.run_options import Observe, RunOptions, RunRequest, ignore_step
from conduit_dagster.engine.run_status import AWAY, RunStatusWriter, unrecorded
from conduit_dagster.engine.step_context import SourceAcks
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.recovery.classify import blamed, survivable
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.recovery.policy import PipelineStatus
from conduit_dagster.spark.connect import end_jobs_of
from conduit_dagster.spark.sql.query import open_with
from conduit_dagster.state.database import unreachable
from conduit_dagster.state.lease import Lease, acquire
from conduit_dagster.state.store import PipelineStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_pipeline(
    bound: BoundPipeline,
    spark: SparkSession | Callable[[], SparkSession],
    database: sa.Engine,
    options: RunOptions,
    stop: StopFlag,
    observe: Observe = ignore_step,
    progress: RunProgress | None = None,
) -> RunResult:
    """Run a pipeline until it is stopped, drained or failed. Errors of the pipeline are not raised.

    The first error is in the result and in the state store. ``spark`` may be a function, which is called under the
    lease, so that its failure counts as the pipeline's; ``progress`` is the progress of earlier attempts.
    """
    opener = spark if callable(spark) else lambda: spark
    attempt = _Attempt(RunRequest(bound, database, options, stop, observe), opener, progress or RunProgress())
    try:
        return bounded(attempt.run, stop, bound.config.delivery.shutdown_timeout, f"run-{bound.id}")
    except RunHung as hung:
        return attempt.give_up(hung.where)


class _Attempt:
    """One run, from its lease on, in a thread that may have to be abandoned."""

    def __init__(self, request: RunRequest, opener: Callable[[], SparkSession], progress: RunProgress) -> None:
        self._request, self._bound, self._stop = request, request.bound, request.stop
        self._opener, self._progress = opener, progress
        self._status: RunStatusWriter | None = None
        self._lease: Lease | None = None
        self._run: _Run | None = None

    def run(self) -> RunResult:
        request, bound, options = self._request, self._bound, self._request.options
        origin, database, progress = options.origin, request.database, self._progress
        origin = replace(origin, since_ns=origin.since_ns or time.time_ns())
        try:
            lease = acquire(database, bound.id, options.lease_seconds, lambda: self._stop.requested)
        except SQLAlchemyError as error:
            return unrecorded(bound.id, unreachable(database, error, AWAY), origin.recovery, origin.past, progress)
        except ConduitError as error:
            return unrecorded(bound.id, error, origin.recovery, origin.past, progress)
        reached("after-lease", bound.id)
        store = PipelineStore(database, lease, options.patience, lambda: self._stop.forced)
        status = RunStatusWriter(store, origin, self._stop, progress)
        self._status, self._lease = status, lease
        run = _Run(request, self._opener, store, status)
        self._run = run
        try:
            return run.run()
        finally:
            try:
                run.close()
            finally:
                lease.release()

    def give_up(self, where: str) -> RunResult:
        """Give up a run that hangs. Its thread can make no more decisions; the next run completes those already
        made."""
        if self._status is None or self._lease is None or self._run is None:
            return RunResult(
                self._bound.id, PipelineStatus.STOPPED, self._stop.reason, None, self._progress, None, where
            )
        result, last = self._status.hung(where)
        # if it ever continues, it ends at the next check
        self._stop.force()
        self._run.leave()
        lease, cancelled = self._lease, self._run.cancelled_jobs()

        def record(connection: sa.Connection) -> None:
            last(connection)
            cancelled(connection)

        # the store itself may hang; then the next run finds a dead owner, as after SIGKILL
        within(lambda: lease.abandon(record), RECORDING, f"end-{self._bound.id}")
        return result


class _Run:
    def __init__(
        self, request: RunRequest, opener: Callable[[], SparkSession], store: PipelineStore, status: RunStatusWriter
    ) -> None:
        self._request, self._opener, self._store, self._status = request, opener, store, status
        self._bound, self._options, self._stop = request.bound, request.options, request.stop
        self._pipeline = request.bound.compiled
        self.acks = SourceAcks()
        self._watch: Watch | None = None
        self._jobs: Jobs | None = None

    def leave(self) -> None:
        """Detach the hanging thread of this run: it acks nothing more, and cancels no job of the next run."""
        self.acks.refuse()
        if self._watch is not None:
            self._watch.ended.set()

    def close(self) -> None:
        """Refuse further acks and close the pipeline's connectors, with open work or without."""
        self.acks.refuse()
        pipelines = (self._request.bound.compiled, self._pipeline)
        for pipeline in {id(one): one for one in pipelines}.values():
            close_connectors(pipeline)

    def run(self) -> RunResult:
        try:
            end_deletion(self._store, self._options)
            if not self._status.begin(self._bound.file, self._bound.digest, self._is_drain_by_hand()):
                return self._status.superseded()
            claim_folders(self._store.engine, self._bound.id, self._options)
            jobs = self._jobs = Jobs(self._opener(), self._bound.id, self._store.epoch)
            # before anything is sent to a direct destination: a sender of the previous owner may still be running
            end_jobs_of(jobs.spark, self._store.last_jobs())
            self._store.keep_jobs(jobs.whereabouts())
            # processors of the dead-letter queue also run on the driver
            open_with(self._opener)
            # the sources of the file need kept values too, because their lag is queried
            attach_kept(self._pipeline, self._store)
            state = self._store.load()
            require_no_memory(self._bound, state)
            self._bound = with_open_work(self._bound, state)
            self._pipeline = self._bound.compiled
            attach_kept(self._pipeline, self._store)
            self.acks = SourceAcks()
            attach_logs(self._pipeline, self._store, self._options.log_url)
            fence(self._pipeline, self._store)
            try:
                self._deliver(jobs)
            finally:
                self._keep_cancelled(jobs)
        except BaseException as error:  # the last line of defence: the status must say how the run ended
            if (known := survivable(error)) is None:
                raise
            return self._status.failed(known)
        config = self._request.bound.config
        # a continuous pipeline is started again in any case, and a timed one at its next tick
        return self._status.stopped(config.trigger.kind == "available-now" and config.status == "running")

    def _is_drain_by_hand(self) -> bool:
        """Return whether this run drains although the pipeline is continuous, or nothing restarts it."""
        is_continuous = self._bound.config.trigger.kind == "continuous"
        return self._options.drain and (is_continuous or self._options.origin.recovery is None)

    def cancelled_jobs(self) -> Callable[[sa.Connection], None]:
        """Return the part of a transaction that stores cancelled jobs for the next owner.

        Their tasks end a moment later, and those of a direct destination may send until then.
        """
        is_direct = any(one.placement == "direct" for one in self._pipeline.consumers.values())
        if self._jobs is None or not self._jobs.is_cancelled or not is_direct:
            return lambda connection: None
        return self._store.keeping_jobs(self._jobs.whereabouts())

    def _keep_cancelled(self, jobs: Jobs) -> None:
        if jobs.is_cancelled:
            # an unreachable store is reported by the end of the run
            with suppress(ConduitError, SQLAlchemyError):
                self._store.transactions.run(self.cancelled_jobs())

    # -- steps --------------------------------------------------------------------------------------------------

    def _deliver(self, jobs: Jobs) -> None:
        depth = self._bound.config.delivery.max_in_flight
        timeout = self._bound.config.delivery.shutdown_timeout
        with watching(self._stop, jobs, timeout, self._store.engine, self._bound.id) as watch:
            self._watch = watch
            chosen = self._options.parallelism
            slots = jobs.slots if chosen is None else lambda: chosen
            context = make_context(self._bound, self._store, jobs, self._options, slots, self.acks)
            appender = Appender(context) if self._pipeline.program.log == "records" else None
            loop = StepLoop(context, self._report, appender)
            start_up(loop)
            resume_sources(context)
            # after a stop, a step staged ahead may still be prepared for the shutdown timeout
            with InFlightSteps(loop, depth, partial(self._stop.allows, timeout)) as in_flight:
                try:
                    self._take_steps(loop, in_flight, appender, watch)
                    in_flight.wait()
                finally:
                    self._status.failed_step = in_flight.failed_step

    def _take_steps(self, loop: StepLoop, in_flight: InFlightSteps, appender: Appender | None, watch: Watch) -> None:
        horizons: dict[str, Any] | None = None
        if self._options.drain:
            horizons = {node.id: blamed(node.node, node.source.horizon) for node in self._pipeline.sources}
        idle = IdleWait()
        while not self._stop.requested:
            if appender is not None and appender.rolled:
                in_flight.wait()
                appender.compact()
            try:
                plan = loop.planner.plan_next(horizons)
            except Exception:
                in_flight.wait()  # deliver what is in flight before the failure ends the run
                raise
            if plan is not None:
                in_flight.submit(plan)
                idle.reset()
            # no new data is read before everything in the log is in flight
            elif loop.planner.log_first():
                # a range may be empty, and then no step follows that would ack it
                acknowledge(loop.context)
                idle.reset()
            elif self._options.drain or self._stop.wait(idle.seconds()):
                break
            else:
                watch.require_store()
            in_flight.raise_failure()
            self._status.end_recovery()

    def _report(self, step: StepReport) -> None:
        self._status.progress.add(step)
        self._status.step_done(step)
        self._request.observe(step, self._status.progress)


_SHORTEST, _LONGEST = 0.05, 1.0
"""Seconds between two polls: right after a step, and after a while without new records."""
_PATIENCE = 5.0
"""Seconds without a step before the wait grows: a slow trickle of records keeps the shortest wait."""
_SHARE, _QUIET_SHARE = 200, 400
"""Minimum ratio of the wait to the CPU time of a poll, up to ``_CEILING``: normally, and when idle."""
_CEILING = 10.0


class IdleWait:
    """Wait of one pipeline's loop. Polling costs at most half a percent of a core, half of that when idle.

    Not guaranteed if one poll takes more than 25 ms of CPU time: the wait never exceeds ten seconds, so that new
    records are not delayed for longer.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._cpu = clock, cpu
        self.reset()

    def reset(self) -> None:
        """Reset the wait after a step."""
        self._since, self._wait = self._clock(), _SHORTEST
        self._before = self._cpu()

    def seconds(self) -> float:
        """Return how long to wait after a poll that found nothing; its cost is the CPU time since the last call."""
        now = self._cpu()
        cost, self._before = now - self._before, now
        is_quiet = self._clock() - self._since >= _PATIENCE
        if is_quiet:
            self._wait = min(self._wait * 2, _LONGEST)
        return min(max(self._wait, cost * (_QUIET_SHARE if is_quiet else _SHARE)), _CEILING)
