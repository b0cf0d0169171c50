"""Exclusive right to change a stopped pipeline for the time of one operation."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.compiled_pipeline import CompiledPipeline, close_connectors
from conduit_dagster.engine.loop import StepLoop, make_context
from conduit_dagster.engine.open_work import with_open_work
from conduit_dagster.engine.operate.operator_errors import never_ran
from conduit_dagster.engine.pipeline_folders import claim_folders, end_deletion
from conduit_dagster.engine.registering import attach_kept, attach_logs
from conduit_dagster.engine.report import StepReport
from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.engine.step_context import SourceAcks
from conduit_dagster.recovery.errors import ConduitError, FatalError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.spark.connect import end_jobs_of, owner_tag, whereabouts
from conduit_dagster.spark.sql.query import open_with
from conduit_dagster.state.connector_registrations import Generations, unmarked
from conduit_dagster.state.database import unreachable
from conduit_dagster.state.delivery_store import EVERYTHING, set_offsets
from conduit_dagster.state.lease import Lease, LeaseHeldByCommand, LeaseLost, acquire
from conduit_dagster.state.overview import pipeline_rows
from conduit_dagster.state.row_statements import update
from conduit_dagster.state.store import PipelineStore
from conduit_dagster.state.tables import collections, consumers, logs, offsets, sources, steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class StoreLock:
    """The state of a stopped pipeline that no other process can run meanwhile; its file is not needed."""

    store: PipelineStore
    options: RunOptions
    by: str
    """Name of the operator, for the history."""

    @property
    def id(self) -> str:
        """Id of the pipeline."""
        return self.store.pipeline


@dataclass(frozen=True)
class PipelineLock(StoreLock):
    """A stopped pipeline that no other process can run meanwhile."""

    bound: BoundPipeline
    jobs: Jobs
    closing: ExitStack
    """Closes the connectors of every pipeline that the operation used."""

    @property
    def pipeline(self) -> CompiledPipeline:
        """Compiled pipeline."""
        return self.bound.compiled

    def of(self, bound: BoundPipeline) -> PipelineLock:
        """Return the lock for the pipeline with other sources, such as those of a replay."""
        if bound is self.bound:
            return self
        self.closing.callback(close_connectors, bound.compiled)
        return replace(self, bound=bound)

    def loop(self, report: Callable[[StepReport], None] = lambda step: None) -> StepLoop:
        """Return the engine's own loop in its current state; starts nothing."""
        options = self.options
        attach_logs(self.pipeline, self.store, options.log_url)
        acks = SourceAcks()

        def slots() -> int:
            return options.parallelism or 1

        return StepLoop(make_context(self.bound, self.store, self.jobs, options, slots, acks), report)


@contextmanager
def owned(
    bound: BoundPipeline,
    database: sa.Engine,
    options: RunOptions,
    spark: Callable[[], SparkSession],
    by: str,
    fresh: bool = False,
) -> Generator[PipelineLock]:
    """Hold the pipeline's lease. ``fresh``: accept a pipeline that never ran.

    Raises ``FatalError`` (``pipeline.never_ran``), ``TransientError`` (``lease.held`` if it runs).
    """
    with leased(bound.id, database, options, fresh) as store:
        reached("after-lease", bound.id)
        claim_folders(database, bound.id, options)
        end_deletion(store, options)
        open_with(spark)
        state = store.load()
        bound = with_open_work(bound, state)
        with ExitStack() as closing:
            closing.callback(close_connectors, bound.compiled)
            attach_kept(bound.compiled, store)
            jobs = Jobs(lambda: _alone(spark(), store), bound.id, store.epoch)
            with owner_first(store):
                yield PipelineLock(store, options, by, bound, jobs, closing)


@contextmanager
def owned_store(pipeline: str, database: sa.Engine, options: RunOptions, by: str) -> Generator[StoreLock]:
    """Hold the pipeline's lease, whatever its file says. Raises as :func:`owned`."""
    with leased(pipeline, database, options) as store, owner_first(store):
        yield StoreLock(store, options, by)


@contextmanager
def leased(pipeline: str, database: sa.Engine, options: RunOptions, fresh: bool = False) -> Generator[PipelineStore]:
    """Hold a stopped pipeline's lease; yield its store. ``fresh``: it may never have run.

    Raises ``FatalError`` (``pipeline.never_ran``), ``TransientError`` (``lease.held``, ``state.unreachable``).
    """
    if not fresh and pipeline not in pipeline_rows(database):
        raise never_ran(pipeline)
    lease = take_lease(pipeline, database, options)
    try:
        yield PipelineStore(database, lease, options.patience)
    finally:
        lease.release()


@contextmanager
def owner_first(store: PipelineStore) -> Generator[None]:
    """Raise ``LeaseLost`` in place of the error of a command that was frozen: it met the work of the next owner.

    Likewise the ``FatalError`` of a store that was lost meanwhile.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ConduitError) and error.code.startswith(("lease.", "state.")):
            raise
        try:
            store.transactions.run(lambda connection: None)
        except (LeaseLost, FatalError):
            raise
        except (ConduitError, SQLAlchemyError):
            pass  # the store does not answer
        raise


def _alone(spark: SparkSession, store: PipelineStore) -> SparkSession:
    """End what the last owner left running, such as a sender, before anything is sent again.

    Store where the jobs of this operation run, so that its successor can do the same if it is killed.
    """
    end_jobs_of(spark, store.last_jobs())
    store.keep_jobs(whereabouts(spark, owner_tag(store.pipeline, store.epoch)))
    return spark


def take_lease(pipeline: str, database: sa.Engine, options: RunOptions) -> Lease:
    """Acquire a stopped pipeline's lease. Raises ``TransientError`` (``lease.held``, ``state.unreachable``)."""
    try:
        return acquire(database, pipeline, options.lease_seconds, by_command=True)
    except SQLAlchemyError as error:
        raise unreachable(database, error, "the state store does not answer") from error
    except ConduitError as error:
        if error.code == "lease.held" and not isinstance(error, LeaseHeldByCommand):
            stop = f"conduit-dagster pipelines stop {pipeline}"
            error.fix = f"stop it first: {stop}; then type this again, and pipelines start {pipeline} at the end"
        raise


def put_offset(connection: sa.Connection, pipeline: str, consumer: str, source: str, upto: int) -> None:
    """Set a consumer's offset in a source, forward or back; below 0 means nothing is handled."""
    if upto >= 0:
        set_offsets(connection, pipeline, consumer, source, {EVERYTHING: upto}, time.time_ns())
        return
    mine = (offsets.c.pipeline == pipeline, offsets.c.consumer == consumer, offsets.c.source == source)
    connection.execute(sa.delete(offsets).where(*mine))


def put_offsets(connection: sa.Connection, pipeline: str, source: str, upto: int) -> None:
    """Set the offset of every consumer, as :func:`put_offset`."""
    known = sa.select(consumers.c.consumer).where(consumers.c.pipeline == pipeline)
    for consumer in list(connection.execute(known).scalars()):
        put_offset(connection, pipeline, consumer, source, upto)


def move_source(connection: sa.Connection, pipeline: str, source: str, position: Any, records: int | None) -> None:
    """Set a source's position; if ``records`` is None, offsets continue to count."""
    values: dict[str, Any] = {"position": json.dumps(position)}
    if records is not None:
        values["records"] = records
    update(connection, sources, _source(pipeline, source), values)


def renew_source(connection: sa.Connection, pipeline: str, source: str) -> int:
    """Give a source a new generation, so that new delivery hashes never collide with old ones; return it."""
    mine = _source(pipeline, source)
    unit = unmarked(json.loads(connection.execute(sa.select(sources.c.unit).filter_by(**mine)).scalar_one()))
    generation = Generations(connection, pipeline).new(source, json.dumps(unit, sort_keys=True))
    update(connection, sources, mine, {"generation": generation})
    return generation


def _source(pipeline: str, source: str) -> dict[str, Any]:
    return {"pipeline": pipeline, "source": source}


def drop_planned(connection: sa.Connection, pipeline: str) -> None:
    """Void the steps that are planned but not prepared: a prepared one is never taken back."""
    update(connection, steps, {"pipeline": pipeline, "state": "planned"}, {"state": "void"})


def forget_collections(connection: sa.Connection, pipeline: str, source: str, first: int) -> None:
    """Forget the copy state of collections: it is unknown once a collection's last record is to be read again."""
    mine = (collections.c.pipeline == pipeline, collections.c.source == source)
    connection.execute(sa.delete(collections).where(*mine, collections.c.offset >= first))


def begin_log_at(connection: sa.Connection, pipeline: str, source: str, offset: int) -> None:
    """Set the offset of the log's next entry; earlier offsets were never in this log."""
    update(connection, logs, _source(pipeline, source), {"next_offset": offset})
