"""The code location: every pipeline of the project around the working directory."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from assets.project import define_assets
from conduit_dagster.config.project import Project
from conduit_dagster.engine.catalogue import open_catalogue
from resources.spark import SparkResource
from resources.state import StateResource
from sensors.project import define_sensors
from sensors.schedules import define_schedules


def define(project: Project) -> dg.Definitions:
    """The definitions of a project. A broken pipeline file does not take the others down."""
    catalogue = open_catalogue(project)
    found = define_assets(catalogue)
    root = str(project.root)
    return dg.Definitions(
        assets=found.assets,
        jobs=found.jobs,
        sensors=define_sensors(project, found.jobs),
        schedules=define_schedules(catalogue.bound, {job.name: job for job in found.jobs}),
        resources={"spark": SparkResource(root=root), "state": StateResource(root=root)},
        # a session and its signals belong to one process
        executor=dg.in_process_executor,
    )


@dg.definitions
def defs() -> dg.Definitions:
    """What Dagster loads."""
    return define(Project.find(Path.cwd()))
