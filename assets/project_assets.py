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
from conduit_dagster.assets.pipeline_assets import Links, PipelineDefinitions, define_pipeline, find_links
from conduit_dagster.config.isolation import isolated
from conduit_dagster.config.parse import ParsedPipeline
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.catalogue import Catalogue


@dataclass
class ProjectAssets:
    """Assets and jobs of a code location."""

    assets: list[dg.AssetsDefinition | dg.AssetSpec] = field(default_factory=list[dg.AssetsDefinition | dg.AssetSpec])
    checks: list[dg.AssetChecksDefinition] = field(default_factory=list[dg.AssetChecksDefinition])
    jobs: list[Any] = field(default_factory=list[Any])

    def add(self, pipeline: PipelineDefinitions) -> None:
        """Add a pipeline's definitions."""
        self.assets += [*pipeline.sources, *pipeline.written]
        self.jobs += [pipeline.job, *pipeline.more_jobs]


def define_assets(catalogue: Catalogue, refused: Mapping[str, Exception] | None = None) -> ProjectAssets:
    """Return the definitions of every pipeline that can run, and an asset in place of every broken one.

    ``refused``: pipelines that Dagster did not load, with its errors; they count as broken.
    """
    found = ProjectAssets()
    with_errors = list(broken_pipelines(catalogue.loaded))  # Dagster may refuse more of them
    for pipeline in _pipelines(catalogue, refused or {}):
        found.add(pipeline)
    warn(catalogue.findings)
    found.assets += [pipeline_files(catalogue), *broken_assets(broken_pipelines(catalogue.loaded))]
    found.checks += broken_checks(with_errors)
    return found


def _pipelines(catalogue: Catalogue, refused: Mapping[str, Exception]) -> Iterator[PipelineDefinitions]:
    """Yield the definitions of each pipeline; a pipeline that Dagster rejects becomes a finding."""
    parsed = {one.config.id: one for one in catalogue.loaded.pipelines}
    links, names, keys = find_links(catalogue.bound), set[str](), {PIPELINE_FILES}
    for bound in catalogue.bound:
        one = parsed[bound.id]
        with isolated(one, "defining this pipeline in Dagster"):
            pipeline = _defined(bound, one, links, refused.get(bound.id))
            if pipeline is None:
                continue
            own = {job.name for job in (pipeline.job, *pipeline.more_jobs)}
            written = set(_keys([*pipeline.sources, *pipeline.written]))
            if taken := own & names:
                _refuse(one, f"another pipeline's job is called {min(taken)} too")
            elif clash := written & keys:
                _refuse(one, f"the asset key {min(key.to_user_string() for key in clash)} is taken already")
            else:
                names |= own
                keys |= written
                yield pipeline


def _defined(
    bound: BoundPipeline, parsed: ParsedPipeline, links: Links, refused: Exception | None
) -> PipelineDefinitions | None:
    """Return a pipeline's definitions; None, and a finding, if Dagster rejects it."""
    try:
        if refused is not None:
            raise refused
        return define_pipeline(bound, parsed, links)
    except dg.DagsterError as error:
        _refuse(parsed, str(error).strip())
        return None


def _keys(assets: Iterable[dg.AssetsDefinition | dg.AssetSpec]) -> Iterator[dg.AssetKey]:
    for asset in assets:
        yield from [asset.key] if isinstance(asset, dg.AssetSpec) else asset.keys


def _refuse(parsed: ParsedPipeline, message: str) -> None:
    finding = parsed.finding("/id", "dagster.refused", message, fix="give the pipeline another id")
    if finding not in parsed.findings:
        parsed.findings.append(finding)
