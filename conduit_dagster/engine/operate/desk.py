"""The right to change a stopped pipeline, for the time of one operation."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.engine.assembly import make_loop
from conduit_dagster.engine.compiled import CompiledPipeline
from conduit_dagster.engine.dead_letters.replaying import with_open_replay
from conduit_dagster.engine.jobs import Jobs
from conduit_dagster.engine.loop import StepLoop
from conduit_dagster.engine.operate.refused import never_ran
from conduit_dagster.engine.planner import BoundPipeline
from conduit_dagster.engine.registering import attach_logs
from conduit_dagster.engine.report import StepReport
from conduit_dagster.engine.source_acks import SourceAcks
from conduit_dagster.engine.supervisor import RunOptions
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.spark.sql.asking import open_with
from conduit_dagster.state.database import unreachable
from conduit_dagster.state.lease import Lease, acquire
from conduit_dagster.state.overview import pipeline_rows
from conduit_dagster.state.store import PipelineStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OpenSpark = Callable[[], "SparkSession"]


class LateJobs(Jobs):
    """Spark jobs of which most operations need none: the session is opened when the first one is made."""

    def __init__(self, opener: OpenSpark, pipeline: str) -> None:
        super().__init__(cast(Any, None), pipeline)
        self._opener = opener
        del self.spark

    def __getattr__(self, name: str) -> Any:
        if name != "spark":
            raise AttributeError(name)
        self.spark = self._opener()
        return self.spark


@dataclass(frozen=True)
class Desk:
    """A stopped pipeline that nobody else can run meanwhile."""

    bound: BoundPipeline
    store: PipelineStore
    options: RunOptions
    jobs: Jobs
    by: str
    """Who operates, for the history."""

    @property
    def id(self) -> str:
        """The pipeline's."""
        return self.bound.id

    @property
    def pipeline(self) -> CompiledPipeline:
        """Its parts."""
        return self.bound.compiled

    def loop(self, report: Callable[[StepReport], None] = lambda step: None) -> StepLoop:
        """The engine's own loop, as it stands now; starts nothing."""
        attach_logs(self.pipeline, self.store, self.options.log_url)
        slots = self.options.parallelism or 1
        options = self.options
        return make_loop(self.bound, self.store, self.jobs, options.staging, options.log_url, slots, None, report)


@contextmanager
def owned(
    bound: BoundPipeline,
    database: sa.Engine,
    options: RunOptions,
    spark: OpenSpark,
    by: str,
    fresh: bool = False,
) -> Generator[Desk]:
    """Holds the pipeline's lease. ``fresh``: it may be one that never ran.

    Raises ``FatalError`` (``pipeline.never_ran``), ``TransientError`` (``lease.held`` where it runs).
    """
    if not fresh and bound.id not in pipeline_rows(database):
        raise never_ran(bound.id)
    lease = _lease(bound.id, database, options)
    reached("after-lease", bound.id)
    try:
        store = PipelineStore(database, lease, options.patience)
        open_with(spark)
        bound = with_open_replay(bound, store.load())
        yield Desk(bound, store, options, LateJobs(spark, bound.id), by)
    finally:
        SourceAcks(bound.compiled).close()
        lease.release()


def _lease(pipeline: str, database: sa.Engine, options: RunOptions) -> Lease:
    try:
        return acquire(database, pipeline, options.lease_seconds)
    except SQLAlchemyError as error:
        raise unreachable(database, error, "the state store does not answer") from error
    except ConduitError as error:
        if error.code == "lease.held":
            error.fix = "stop it first: Ctrl-C where it runs, or terminate its run in Dagster; then type this again"
        raise
