"""All assets and jobs of a project."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from assets.broken_files import broken_assets, broken_pipelines, pipeline_files, warn
from assets.pipeline_assets import PipelineDefinitions, define_pipeline, find_links
from conduit_dagster.config.parse import ParsedPipeline
from conduit_dagster.engine.catalogue import Catalogue


@dataclass
class ProjectAssets:
    """Assets and jobs of a code location."""

    assets: list[dg.AssetsDefinition | dg.AssetSpec] = field(default_factory=list[dg.AssetsDefinition | dg.AssetSpec])
    jobs: list[Any] = field(default_factory=list[Any])

    def add(self, pipeline: PipelineDefinitions) -> None:
        """Add a pipeline's definitions."""
        self.assets += [*pipeline.sources, *pipeline.written]
        self.jobs += [pipeline.job, *pipeline.more_jobs]


def define_assets(catalogue: Catalogue) -> ProjectAssets:
    """Return the definitions of every pipeline that can run, and an asset in place of every broken one."""
    found = ProjectAssets()
    for pipeline in _pipelines(catalogue):
        found.add(pipeline)
    warn(catalogue.findings)
    found.assets += [pipeline_files(catalogue), *broken_assets(broken_pipelines(catalogue.loaded))]
    return found


def _pipelines(catalogue: Catalogue) -> Iterator[PipelineDefinitions]:
    """Yield the definitions of each pipeline; a pipeline that Dagster rejects becomes a finding."""
    parsed = {one.config.id: one for one in catalogue.loaded.pipelines}
    links, names = find_links(catalogue.bound), set[str]()
    for bound in catalogue.bound:
        try:
            pipeline = define_pipeline(bound, parsed[bound.id], links)
        except dg.DagsterError as error:
            _refuse(parsed[bound.id], str(error).strip())
            continue
        own = {job.name for job in (pipeline.job, *pipeline.more_jobs)}
        if taken := own & names:
            _refuse(parsed[bound.id], f"another pipeline's job is called {min(taken)} too")
            continue
        names |= own
        yield pipeline


def _refuse(parsed: ParsedPipeline, message: str) -> None:
    finding = parsed.finding("/id", "dagster.refused", message, fix="give the pipeline another id")
    parsed.findings.append(finding)
