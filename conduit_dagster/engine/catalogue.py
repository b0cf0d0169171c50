"""Catalogue of a project's pipelines: files parsed, plugins loaded, everything bound. No Spark, no Dagster."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from conduit_dagster.config.findings import Finding, without_consequences
from conduit_dagster.config.folder import LoadedFiles, load
from conduit_dagster.config.parse import ParsedPipeline
from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import BoundPipeline, bind_all
from conduit_dagster.engine.plugin_loading import PluginError, Plugins, project_plugins
from conduit_dagster.engine.validation.chain_rules import link


@dataclass(frozen=True)
class Catalogue:
    """Runnable pipelines of a project, and all findings about it."""

    project: Project
    loaded: LoadedFiles
    plugins: Plugins
    bound: list[BoundPipeline]

    @property
    def findings(self) -> list[Finding]:
        """All findings: of the project's settings, of its plugins and of every pipeline file."""
        return [*self.project.findings, *map(_plugin_finding, self.plugins.errors), *self.loaded.findings]

    def get(self, pipeline: str) -> BoundPipeline | None:
        """Return the runnable pipeline with this id, or None."""
        return next((bound for bound in self.bound if bound.id == pipeline), None)


def open_catalogue(project: Project, paths: Iterable[Path | str] = (), strict: bool = False) -> Catalogue:
    """Read files and folders, by default those of the project. Their content never raises."""
    chosen = list(paths) or project.pipeline_paths
    loaded = load(chosen, strict=strict, recovery=project.settings.recovery, root=project.root)
    plugins = project_plugins(project.root)
    upstreams = link(loaded.pipelines, lambda: _of_folder(project), plugins)
    bound = bind_all(loaded.pipelines, project.root, plugins, strict, upstreams)
    for parsed in loaded.pipelines:
        parsed.findings = without_consequences(parsed.findings)
    return Catalogue(project, loaded, plugins, bound)


def _of_folder(project: Project) -> list[ParsedPipeline]:
    """Return the pipelines of the project's own folder, for the case that only some files were read."""
    paths = [path for path in project.pipeline_paths if os.path.exists(path)]  # noqa: PTH110
    return load(paths, recovery=project.settings.recovery, root=project.root).pipelines


def _plugin_finding(error: PluginError) -> Finding:
    return Finding(
        "plugin.broken", "error", error.file, error.line, 1, "", str(error), fix=error.fix, trace=error.trace
    )
