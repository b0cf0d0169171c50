"""Dagster definitions of one pipeline: external sources, one op for everything it writes, one job."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from conduit_dagster.assets.asset_checks import check_specs
from conduit_dagster.assets.backfill_job import define_backfill
from conduit_dagster.assets.dead_letter_jobs import define_letters
from conduit_dagster.assets.names import NO_RETRIES, PROJECT_TAG, job_name, short
from conduit_dagster.assets.pipeline_specs import PipelineSpecs
from conduit_dagster.assets.run_op import LoadedPipeline, RunConfig, run_in_dagster
from conduit_dagster.assets.translator import AssetKeys, followed
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.resources.spark_resource import Spark, StateResource
from conduit_dagster.secret_values import hide


@dataclass(frozen=True)
class PipelineDefinitions:
    """Dagster definitions of one pipeline."""

    sources: list[dg.AssetSpec]
    written: list[dg.AssetsDefinition]
    job: Any
    """An asset job, resolved when the code location is loaded."""
    more_jobs: list[Any]
    """Jobs for its dead letters, and for backfills."""
    keys: AssetKeys


def define_pipeline(
    specs: PipelineSpecs, moved: Mapping[dg.AssetKey, dg.AssetKey], project: str
) -> PipelineDefinitions:
    """Return the definitions of a pipeline. Raises Dagster's error for names it rejects.

    ``moved``: the keys of all pipelines that the translation has changed; ``project``: value of ``PROJECT_TAG``.
    """
    bound, [replayed] = specs.bound, followed([specs.replayed], moved)
    written = _written(bound, list(followed(specs.written, moved)), specs.keys)
    letters = define_letters(bound, replayed, specs.keys)
    backfill = define_backfill(bound, specs.keys)
    jobs = [letters.replay, letters.discard, *([] if backfill is None else [backfill])]
    sources = list(followed(specs.sources, moved))
    return PipelineDefinitions(sources, [written, letters.replayed], _job(bound, written, project), jobs, specs.keys)


def _job(bound: BoundPipeline, written: dg.AssetsDefinition, project: str) -> Any:
    return dg.define_asset_job(
        job_name(bound.id),
        selection=dg.AssetSelection.assets(*written.keys),
        description=_about(bound),
        tags={"conduit/pipeline": short(bound.id), PROJECT_TAG: project, **NO_RETRIES},
        metadata={"conduit/pipeline": bound.id},
        executor_def=dg.in_process_executor,
    )


def _about(bound: BoundPipeline) -> str:
    config = bound.config
    trigger = config.trigger.cron or (
        f"every {config.trigger.every:g}s" if config.trigger.every else config.trigger.kind
    )
    facts = f"Delivery: {config.delivery.strategy}. Trigger: {trigger}. The file says: {config.status}."
    return hide(f"{config.description}\n\n{facts}".strip())


def _written(bound: BoundPipeline, specs: list[dg.AssetSpec], keys: AssetKeys) -> dg.AssetsDefinition:
    loaded = LoadedPipeline(bound.id, bound.file, keys)

    @dg.multi_asset(
        name=f"{job_name(bound.id)}__run",
        specs=specs,
        check_specs=check_specs(keys),
        can_subset=False,
        op_tags={"conduit/pipeline": short(bound.id)},
    )
    def run(
        context: dg.AssetExecutionContext, config: RunConfig, conduit_spark: Spark, conduit_state: StateResource
    ) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
        yield from run_in_dagster(context, config, loaded, conduit_spark, conduit_state)

    return run
