"""The partitioned Dagster job that sends destinations the log of a time window again (``ID__backfill``)."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import sqlalchemy as sa
from pydantic import Field

from conduit_dagster.assets.names import job_name, job_tags
from conduit_dagster.assets.run_op import LoadedPipeline, failure, operator_of, read_again
from conduit_dagster.assets.stopping import Interruptible
from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.operate.pipeline_lock import PipelineLock, owned
from conduit_dagster.engine.operate.rewind import RewindTarget
from conduit_dagster.engine.operate.send_again import Resent, deliver_missed, send_all_again
from conduit_dagster.engine.operate.summaries import sent_range
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.resources.spark_resource import Spark, StateResource

_HELD = "lease.held"
_AGAIN = 10
"""Seconds between checks whether the pipeline is free."""
_KINDS: dict[str, type[dg.TimeWindowPartitionsDefinition]] = {
    "hourly": dg.HourlyPartitionsDefinition,
    "daily": dg.DailyPartitionsDefinition,
    "weekly": dg.WeeklyPartitionsDefinition,
    "monthly": dg.MonthlyPartitionsDefinition,
}


class BackfillConfig(dg.Config):
    """Config of a backfill."""

    destinations: list[str] = Field(default=[], description="Only these destinations; without any, all of them.")
    source: str | None = Field(default=None, description="Only what came from this source.")
    dry_run: bool = Field(default=False, description="Only show what would be sent again.")
    wait: int = Field(default=600, description="How many seconds to wait for a running pipeline.")


def partitions_of(bound: BoundPipeline, now: datetime) -> dg.TimeWindowPartitionsDefinition | None:
    """Return the partitions of the kept log, up to the current one; None if the file does not configure them."""
    retention = bound.config.delivery.log_retention
    if retention is None or retention.partitions is None or retention.time is None:
        return None
    first = (now - timedelta(seconds=retention.time)).replace(minute=0, second=0, microsecond=0)
    begin = first if retention.partitions == "hourly" else first.replace(hour=0)
    if retention.partitions == "monthly":
        begin = begin.replace(day=1)
    elif retention.partitions == "weekly":
        begin -= timedelta(days=begin.isoweekday() % 7)  # Dagster's weeks begin on Sunday
    return _KINDS[retention.partitions](start_date=begin, timezone="UTC", end_offset=1)  # type: ignore[call-arg]


def define_backfill(bound: BoundPipeline, keys: AssetKeys) -> dg.JobDefinition | None:
    """Return the backfill job of a pipeline; None if its file has no ``log-retention.partitions``."""
    partitions = partitions_of(bound, datetime.now(UTC))
    if partitions is None:
        return None
    name = f"{job_name(bound.id)}__backfill"
    backfill = _op(LoadedPipeline(bound.id, bound.file, keys), f"{name}_partition")

    @dg.job(
        name=name,
        description=f"Sends destinations of pipeline {bound.id} again what was logged within a partition's time. "
        "It waits until the pipeline does not run.",
        tags=job_tags(bound.id),
        partitions_def=partitions,
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        backfill()

    return job


def _op(loaded: LoadedPipeline, name: str) -> dg.OpDefinition:
    @dg.op(name=name)
    def send_partition(
        context: dg.OpExecutionContext, config: BackfillConfig, conduit_spark: Spark, conduit_state: StateResource
    ) -> None:
        """Send the range again and wait for its delivery."""
        with Interruptible() as running:
            try:
                bound = read_again(loaded.id, loaded.file, conduit_state.project)
                session, options = conduit_spark.spark_session, RunOptions.of(conduit_state.project)
                holding = owned(bound, conduit_state.database, options, lambda: session, operator_of(context))

                def send() -> tuple[list[dict[str, Any]], dict[str, int]]:
                    with holding as lock:
                        return _send(lock, conduit_state.database, config, context.partition_time_window, running)

                found, delivered = running.run(loaded.id, send)
            except ConduitError as error:
                if error.code == _HELD and config.wait:
                    context.log.info(f"{error.message}; looking again in {_AGAIN} s")
                    raise dg.RetryRequested(math.ceil(config.wait / _AGAIN), _AGAIN) from error
                raise failure(error) from None
            for event in _told(context, loaded.keys, found, delivered):
                context.log_event(event)

    return send_partition


def _send(
    lock: PipelineLock, database: sa.Engine, config: BackfillConfig, window: dg.TimeWindow, running: Interruptible
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Send what is left of earlier backfills, then the window; return its ranges, and all records by destination."""
    if config.dry_run:
        return _ranges(lock, database, config, window), {}
    # the rest of an earlier backfill comes first: nothing is registered while a destination is unavailable
    left = deliver_missed(lock, running.goes_on)
    if not running.goes_on():
        return [], left
    found = _ranges(lock, database, config, window)
    return found, dict(Counter(left) + Counter(deliver_missed(lock, running.goes_on)))


def _ranges(
    lock: PipelineLock, database: sa.Engine, config: BackfillConfig, window: dg.TimeWindow
) -> list[dict[str, Any]]:
    """Register each log's range for each destination, all or none; return the facts."""
    start, end = (RewindTarget("kept_time", round(at.timestamp() * 1e9)) for at in (window.start, window.end))
    sources = [config.source] if config.source else [node.id for node in lock.pipeline.sources]
    destinations = config.destinations or [node.id for node in lock.pipeline.outputs]
    wanted = [(source, Resent(destination, start, end)) for source in sources for destination in destinations]
    found = send_all_again(lock, database, wanted, dry_run=config.dry_run)
    return [{**facts, "dry_run": config.dry_run} for facts in found]


def _told(
    context: dg.OpExecutionContext, keys: AssetKeys, found: Sequence[dict[str, Any]], delivered: dict[str, int]
) -> Iterator[dg.AssetMaterialization]:
    """Log the ranges sent again, and yield a materialisation of each destination that received records."""
    for facts in found:
        context.log.info(sent_range(facts))
    context.add_output_metadata({"ranges": dg.MetadataValue.json(list(found)), "records_delivered": delivered})
    for destination, records in delivered.items():
        if records:
            metadata = {"records_delivered": records, "partition": context.partition_key}
            yield dg.AssetMaterialization(keys.of(destination), metadata=metadata)
