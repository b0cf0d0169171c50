"""Assets and jobs of a project: of each pipeline external sources, one op for everything it writes, its jobs."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from conduit_dagster.assets.asset_checks import READABLE_SOURCES, check_specs, source_checks
from conduit_dagster.assets.backfill_job import define_backfill
from conduit_dagster.assets.broken_files import (
    BROKEN_PIPELINES,
    PIPELINE_FILES,
    broken_assets,
    broken_checks,
    broken_pipelines,
    pipeline_files,
    warn,
)
from conduit_dagster.assets.dead_letter_jobs import define_letters
from conduit_dagster.assets.names import PROJECT_TAG, job_name, job_tags, project_name, run_op_name, short
from conduit_dagster.assets.operator_jobs import operator_jobs
from conduit_dagster.assets.pipeline_specs import PipelineSpecs, find_links, specify_pipeline
from conduit_dagster.assets.run_op import LoadedPipeline, RunConfig, run_in_dagster
from conduit_dagster.assets.translator import AssetKeys, PipelineTranslator, followed
from conduit_dagster.config.findings import isolated
from conduit_dagster.config.parse import ParsedPipeline
from conduit_dagster.engine.bound_pipeline import BoundPipeline, Catalogue
from conduit_dagster.recovery.errors import FatalError
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

    @property
    def names(self) -> set[str]:
        """Names of its jobs and ops, each of which Dagster takes once in a code location."""
        ops = (asset.op.name for asset in self.written)
        return {*ops, *_names([self.job, *self.more_jobs])}


def _names(jobs: Iterable[Any]) -> Iterator[str]:
    for job in jobs:
        yield job.name
        if isinstance(job, dg.JobDefinition):
            yield from (node.name for node in job.all_node_defs)


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
        tags={**job_tags(bound.id), PROJECT_TAG: project},
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
        name=run_op_name(job_name(bound.id)),
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


Refused = Mapping[str, Exception]
"""Pipelines that Dagster refused to load, with its errors."""


@dataclass
class ProjectAssets:
    """Assets and jobs of a code location."""

    assets: list[dg.AssetsDefinition | dg.AssetSpec] = field(default_factory=list[dg.AssetsDefinition | dg.AssetSpec])
    checks: list[dg.AssetChecksDefinition] = field(default_factory=list[dg.AssetChecksDefinition])
    jobs: list[Any] = field(default_factory=list[Any])
    keys: dict[str, AssetKeys] = field(default_factory=dict[str, AssetKeys])
    """Keys of each pipeline's assets, by the name of its job."""

    def add(self, pipeline: PipelineDefinitions) -> None:
        """Add a pipeline's definitions."""
        self.assets += [*pipeline.sources, *pipeline.written]
        self.jobs += [pipeline.job, *pipeline.more_jobs]
        self.keys[pipeline.job.name] = pipeline.keys


def define_assets(catalogue: Catalogue, translator: PipelineTranslator, refused: Refused) -> ProjectAssets:
    """Return the definitions of every pipeline that can run, and an asset in place of every broken one.

    ``refused`` pipelines count as broken.
    """
    found = ProjectAssets()
    with_errors = list(broken_pipelines(catalogue.loaded))  # Dagster may refuse more of them
    for pipeline in _pipelines(catalogue, translator, refused):
        found.add(pipeline)
    warn(catalogue.findings)
    found.assets += [pipeline_files(catalogue), *broken_assets(broken_pipelines(catalogue.loaded))]
    found.checks += [*broken_checks(with_errors), *source_checks(catalogue, found.keys.values())]
    return found


def _pipelines(catalogue: Catalogue, translator: PipelineTranslator, refused: Refused) -> Iterator[PipelineDefinitions]:
    """Yield the definitions of each pipeline; a pipeline that Dagster rejects becomes a finding."""
    parsed = {one.config.id: one for one in catalogue.loaded.pipelines}
    specified = list(_specified(catalogue, translator, refused, parsed))
    moved = {before: after for specs in specified for before, after in specs.keys.moved.items()}
    project, names, keys = project_name(catalogue.project), _own_names(), {PIPELINE_FILES}
    for specs in specified:
        one = parsed[specs.bound.id]
        with isolated(one, "defining this pipeline in Dagster"):
            pipeline = _defined(specs, moved, project, one)
            if pipeline is None:
                continue
            own = pipeline.names
            written = set(_keys([*pipeline.sources, *pipeline.written]))
            if taken := own & names:
                _refuse(one, f"another job or op is called {min(taken)} too")
            elif clash := written & keys:
                _refuse(one, f"the asset key {min(key.to_user_string() for key in clash)} is taken already", specs.keys)
            else:
                names |= own
                keys |= written
                yield pipeline


def _own_names() -> set[str]:
    """Return the names of the project's own jobs and ops."""
    return {*_names(operator_jobs({})), PIPELINE_FILES.to_python_identifier(), BROKEN_PIPELINES, READABLE_SOURCES}


def _specified(
    catalogue: Catalogue, translator: PipelineTranslator, refused: Refused, parsed: Mapping[str, ParsedPipeline]
) -> Iterator[PipelineSpecs]:
    """Yield the specs of each pipeline; one that Dagster or the translator rejects becomes a finding."""
    links = find_links(catalogue.bound)
    for bound in catalogue.bound:
        one = parsed[bound.id]
        with isolated(one, "defining this pipeline in Dagster"):
            try:
                if error := refused.get(bound.id):
                    raise error
                yield specify_pipeline(bound, one, links, translator)
            except dg.DagsterError as error:
                _refuse(one, str(error).strip())
            except FatalError as error:
                _add(one, error.code, error.message, error.fix or "")


def _defined(
    specs: PipelineSpecs, moved: Mapping[dg.AssetKey, dg.AssetKey], project: str, parsed: ParsedPipeline
) -> PipelineDefinitions | None:
    """Return a pipeline's definitions; None, and a finding, if Dagster rejects it."""
    try:
        return define_pipeline(specs, moved, project)
    except dg.DagsterError as error:
        _refuse(parsed, str(error).strip(), specs.keys)
        return None


def _keys(assets: Iterable[dg.AssetsDefinition | dg.AssetSpec]) -> Iterator[dg.AssetKey]:
    for asset in assets:
        yield from [asset.key] if isinstance(asset, dg.AssetSpec) else asset.keys


def _refuse(parsed: ParsedPipeline, message: str, keys: AssetKeys | None = None) -> None:
    """``keys``: those of its assets, if they may be the reason."""
    is_moved = keys is not None and keys.moved
    fix = "have the translator give each asset a key of its own" if is_moved else "give the pipeline another id"
    _add(parsed, "dagster.refused", message, fix)


def _add(parsed: ParsedPipeline, code: str, message: str, fix: str) -> None:
    finding = parsed.finding("/id", code, message, fix=fix)
    if finding not in parsed.findings:
        parsed.findings.append(finding)
