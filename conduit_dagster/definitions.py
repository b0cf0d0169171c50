"""Dagster code location: all pipelines of the project that contains the working directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import dagster as dg

from conduit_dagster.assets.project_assets import define_assets
from conduit_dagster.config.project import Project
from conduit_dagster.engine.catalogue import Catalogue, open_catalogue
from conduit_dagster.resources.spark_resource import SparkResource, StateResource
from conduit_dagster.sensors.schedules import define_schedules
from conduit_dagster.sensors.tick import define_sensors


def define(project: Project) -> dg.Definitions:
    """Return the Dagster definitions of a project. A broken pipeline file does not affect the others.

    Definitions that Dagster refuses to load together are loaded pipeline by pipeline, and those that fail are left out.
    """
    catalogue = open_catalogue(project)
    whole = _resolved(project, catalogue)
    if isinstance(whole, dg.Definitions):
        return whole
    alone = {bound.id: _resolved(project, replace(catalogue, bound=[bound])) for bound in catalogue.bound}
    return _defined(project, catalogue, {name: one for name, one in alone.items() if isinstance(one, Exception)})


def _resolved(project: Project, catalogue: Catalogue) -> dg.Definitions | Exception:
    """Return the definitions, or the error with which Dagster refuses them. It caches what is resolved for this."""
    try:
        defined = _defined(project, catalogue)
        defined.get_repository_def()
    except Exception as error:  # noqa: BLE001  # whatever it is, it must not take the code location down
        return error
    return defined


def _defined(project: Project, catalogue: Catalogue, refused: Mapping[str, Exception] | None = None) -> dg.Definitions:
    found = define_assets(catalogue, refused)
    root = str(project.root)
    return dg.Definitions(
        assets=found.assets,
        asset_checks=found.checks,
        jobs=found.jobs,
        sensors=define_sensors(project, found.jobs),
        schedules=define_schedules(catalogue.bound, {job.name: job for job in found.jobs}),
        resources={"spark": SparkResource(root=root), "state": StateResource(root=root)},
        # a Spark session and its signal handlers belong to a single process
        executor=dg.in_process_executor,
    )


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions that Dagster loads."""
    return define(Project.find(Path.cwd()))
