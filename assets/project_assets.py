"""All assets and jobs of a project."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from conduit_dagster.assets.broken_files import (
    PIPELINE_FILES,
    broken_assets,
    broken_checks,
    broken_pipelines,
    pipeline_files,
    warn,
)
from conduit_dagster.assets.links import find_links
from conduit_dagster.assets.names import project_name
from conduit_dagster.assets.pipeline_assets import PipelineDefinitions, define_pipeline
from conduit_dagster.assets.pipeline_specs import PipelineSpecs, specify_pipeline
from conduit_dagster.assets.source_checks import source_checks
from conduit_dagster.assets.translator import AssetKeys, PipelineTranslator
from conduit_dagster.config.findings import isolated
from conduit_dagster.config.parse import ParsedPipeline
from conduit_dagster.engine.catalogue import Catalogue
from conduit_dagster.recovery.errors import FatalError

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
    project, names, keys = project_name(catalogue.project), set[str](), {PIPELINE_FILES}
    for specs in specified:
        one = parsed[specs.bound.id]
        with isolated(one, "defining this pipeline in Dagster"):
            pipeline = _defined(specs, moved, project, one)
            if pipeline is None:
                continue
            own = {job.name for job in (pipeline.job, *pipeline.more_jobs)}
            written = set(_keys([*pipeline.sources, *pipeline.written]))
            if taken := own & names:
                _refuse(one, f"another pipeline's job is called {min(taken)} too")
            elif clash := written & keys:
                _refuse(one, f"the asset key {min(key.to_user_string() for key in clash)} is taken already", specs.keys)
            else:
                names |= own
                keys |= written
                yield pipeline


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
