"""Dagster code location: all pipelines of the project that contains the working directory."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from assets.project_assets import define_assets
from conduit_dagster.config.project import Project
from conduit_dagster.engine.catalogue import open_catalogue
from resources.spark_resource import SparkResource, StateResource
from sensors.schedules import define_schedules
from sensors.tick import define_sensors


def define(project: Project) -> dg.Definitions:
    """Return the Dagster definitions of a project. A broken pipeline file does not affect the others."""
    catalogue = open_catalogue(project)
    found = define_assets(catalogue)
    root = str(project.root)
    return dg.Definitions(
        assets=found.assets,
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
