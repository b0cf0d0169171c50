"""Runs one pipeline from its lease to its last status."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.connectors.base import Limit
from conduit_dagster.engine.appender import Appender
from conduit_dagster.engine.assembly import make_loop
from conduit_dagster.engine.blame import blame, blamed
from conduit_dagster.engine.compiled import DEAD_LETTERS
from conduit_dagster.engine.flight import Flight
from conduit_dagster.engine.jobs import Jobs
from conduit_dagster.engine.loop import StepLoop
from conduit_dagster.engine.planner import BoundPipeline
from conduit_dagster.engine.recover import recover
from conduit_dagster.engine.registering import attach_logs, register_sources
from conduit_dagster.engine.report import Progress, RunResult, StepReport, error_json
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.recovery.errors import ConduitError, FatalError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.spark.jobs import JobCancelled
from conduit_dagster.spark.session import parallelism
from conduit_dagster.state.lease import LeaseLost, acquire
from conduit_dagster.state.outage import unreachable
from conduit_dagster.state.store import PipelineStore

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession

_POLL = 0.05
_AWAY = "the state store does not answer"
log = structlog.get_logger("conduit.engine")


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

    @property
    def log_url(self) -> str:
        """Where the commit log lies."""
        return self.log or f"{self.staging.rstrip('/')}/~log"


def run_pipeline(
    bound: BoundPipeline,
    spark: SparkSession,
    database: sa.Engine,
    options: RunOptions,
    stop: StopFlag,
    observe: Callable[[StepReport, Progress], None] = lambda step, progress: None,
) -> RunResult:
    """Runs until stopped, drained or failed; never raises what the pipeline itself did wrong.

    The first error is in the result and in the state store.
    """
    progress = Progress()
    try:
        lease = acquire(database, bound.id, options.lease_seconds, lambda: stop.requested)
    except SQLAlchemyError as error:
        return RunResult(bound.id, "degraded", "", unreachable(database, error, _AWAY), progress)
    except ConduitError as error:
        return RunResult(bound.id, "running" if error.code == "lease.held" else "degraded", "", error, progress)
    reached("after-lease", bound.id)
    store = PipelineStore(database, lease, options.patience, lambda: stop.forced)
    try:
        run = _Run(bound, spark, store, options, stop, progress, observe)
        return run.run()
    finally:
        for destination in bound.compiled.consumers().values():
            destination.close()
        lease.release()


class _Run:
    def __init__(
        self,
        bound: BoundPipeline,
        spark: SparkSession,
        store: PipelineStore,
        options: RunOptions,
        stop: StopFlag,
        progress: Progress,
        observe: Callable[[StepReport, Progress], None],
    ) -> None:
        self._bound, self._spark, self._store, self._options = bound, spark, store, options
        self._stop, self._progress, self._observe = stop, progress, observe
        self._pipeline = bound.compiled
        self._failed_step: int | None = None
        self._jobs = Jobs(spark)

    def run(self) -> RunResult:
        try:
            self._store.set_status("running", file=self._bound.file)
            attach_logs(self._pipeline, self._store, self._options.log_url)
            self._fence()
            self._register()
            self._move()
        except LeaseLost as error:
            return RunResult(self._bound.id, "running", "", error, self._progress)  # another process runs it now
        except JobCancelled as error:
            return self._cancelled(error)
        except ConduitError as error:
            return self._end("degraded", "", error)
        except SQLAlchemyError as error:
            return self._end("degraded", "", unreachable(self._store.engine, error, _AWAY))
        except Exception as error:  # noqa: BLE001  # the last line of defence: the status must say how the run ended
            unforeseen = blame(error, self._bound.id)
            unforeseen.add_note("".join(traceback.format_exception(error)))
            return self._end("degraded", "", unforeseen)
        if self._stop.forced:
            return self._forced()
        return self._end("stopped", self._stop.reason if self._stop.requested else "system", None)

    def _forced(self) -> RunResult:
        cause = FatalError(
            "the pipeline was stopped by force; what was not prepared is read again at the next start",
            code="pipeline.forced_stop",
            fix="run it again when you are ready",
        )
        return self._end("degraded", "user", cause)

    def _cancelled(self, error: ConduitError) -> RunResult:
        if self._stop.forced:
            return self._forced()
        if self._stop.requested:
            return self._end("stopped", self._stop.reason, None)
        return self._end("degraded", "", error)

    def _end(self, status: str, reason: str, error: ConduitError | None) -> RunResult:
        try:
            # steps that were staged ahead end with the run, in the transaction that says so
            first = None if self._failed_step is None else self._failed_step + 1
            self._store.set_status(status, reason, None if error is None else error_json(error), void_from=first)
        except LeaseLost as lost:
            # whatever went wrong here came after the takeover, or from it
            return RunResult(self._bound.id, "running", "", lost, self._progress)
        except (ConduitError, SQLAlchemyError) as lost:
            log.warning("the last status could not be written", pipeline=self._bound.id, cause=str(lost))
        return RunResult(self._bound.id, status, reason, error, self._progress)

    # -- before the first step ----------------------------------------------------------------------------------

    def _fence(self) -> None:
        """Ends what a frozen owner holds open at a destination, so that nothing waits for it."""
        for name, destination in self._pipeline.consumers().items():
            blamed(f"{self._bound.id}:{name}", destination.fence, self._store.epoch)
        reached("after-fence", self._bound.id)

    def _register(self) -> None:
        registry, consumers = self._store.registry, self._pipeline.consumers()
        registry.retire(set(consumers))
        registry.release_others({d.owned for d in consumers.values() if d.owned is not None})
        register_sources(self._pipeline, self._store)
        for name, destination in consumers.items():
            registry.register_consumer(name, "dlq" if name == DEAD_LETTERS else "data")
            if destination.owned is not None:
                self._claim(destination.owned, name)
            blamed(f"{self._bound.id}:{name}", destination.check)
        reached("after-register", self._bound.id)

    def _claim(self, thing: str, consumer: str) -> None:
        if other := self._store.registry.claim(thing, consumer):
            raise FatalError(
                f"{thing} is written by {other[1]} of pipeline {other[0]} already",
                code="destination.owned",
                node=f"{self._bound.id}:{consumer}",
                fix="give each destination and dead-letter queue a path of its own",
            )

    # -- steps --------------------------------------------------------------------------------------------------

    def _move(self) -> None:
        depth = self._bound.config.delivery.max_in_flight
        with self._watching():
            loop = self._loop()
            recover(loop)
            loop = self._loop()
            appender = self._appender()
            horizons = self._horizons() if self._options.drain else None
            with Flight(loop, depth, self._goes_on) as flight:
                try:
                    self._fly(loop, flight, appender, horizons)
                    flight.land()
                finally:
                    self._failed_step = flight.failed_step

    def _fly(self, loop: StepLoop, flight: Flight, appender: Appender | None, horizons: dict[str, Any] | None) -> None:
        while not self._stop.requested:
            if appender is not None and appender.rolled:
                flight.land()
                appender.compact()
            plan = loop.plan_next(horizons)
            if plan is not None:
                flight.take(plan)
            # nothing new is read before everything in the log is on its way
            elif not (appender and appender.append(horizons)) and (self._options.drain or self._stop.wait(_POLL)):
                break
            flight.look()

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
        return self._options.parallelism or parallelism(self._spark)

    def _loop(self) -> StepLoop:
        return make_loop(self._bound, self._store, self._jobs, self._options.staging, self._slots, self._report)

    def _report(self, step: StepReport) -> None:
        self._progress.add(step)
        self._observe(step, self._progress)

    @contextmanager
    def _watching(self) -> Generator[None]:
        """Cancels the Spark jobs on a forced stop, or when a graceful one takes longer than it may."""
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(ended,), daemon=True, name="stop-watcher")
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _watch(self, ended: threading.Event) -> None:
        while not self._stop.wait(_POLL):
            if ended.is_set():
                return
        left = self._bound.config.delivery.shutdown_timeout
        while not self._stop.wait_forced(_POLL) and left > 0:
            if ended.is_set():
                return
            left -= _POLL
        while not ended.wait(_POLL):
            self._jobs.cancel()
