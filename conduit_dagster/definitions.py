"""Dagster definitions of a project: the one that contains the working directory, or one merged into another project."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dagster as dg

from conduit_dagster.assets.operator_jobs import operator_jobs
from conduit_dagster.assets.project_assets import Refused, define_assets
from conduit_dagster.assets.translator import PipelineTranslator
from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import Catalogue, open_catalogue
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.resources.spark_resource import SparkResource, StateResource
from conduit_dagster.sensors.schedules import define_schedules
from conduit_dagster.sensors.tick import define_sensors


@dataclass(frozen=True)
class _Choices:
    """Choices of the caller."""

    translator: PipelineTranslator = field(default_factory=PipelineTranslator)
    spark: Any = None
    """None means a ``SparkResource``."""
    executor: dg.ExecutorDefinition | None = None


def load_pipelines(
    path: str | Path = ".",
    *,
    translator: PipelineTranslator | None = None,
    spark: Any = None,
    strict: bool = False,
) -> dg.Definitions:
    """Return the definitions of a folder's pipelines, to be merged with others: ``dg.Definitions.merge(ours, …)``.

    ``path``: the folder with ``conduit.yaml`` or ``pipelines/``, or one below it; relative to the working directory.
    ``translator``: how pipelines become assets. ``spark``: the user's own resource with a ``spark_session``, such as
    dagster-pyspark's, in place of the session that ``conduit.yaml`` describes. ``strict``: a broken pipeline file
    raises ``FatalError`` (``pipeline.invalid``); otherwise an asset stands for it, and the others are loaded.

    The definitions have the resources ``conduit_spark`` and ``conduit_state`` and the sensors that restart and start
    pipelines, so a code location has room for one project. No executor is set: a run that materialises the assets with
    others takes the code location's own.
    """
    project = Project.find(Path(path))
    catalogue = open_catalogue(project)
    if strict and (errors := [finding.render() for finding in catalogue.findings if finding.is_error]):
        fix = "correct them, or load without strict"
        raise FatalError("\n".join(errors), code="pipeline.invalid", place=str(project.root), fix=fix)
    return _define(catalogue, _Choices(translator or PipelineTranslator(), spark))


def define(project: Project) -> dg.Definitions:
    """Return the Dagster definitions of a project. A broken pipeline file does not affect the others."""
    # a Spark session and its signal handlers belong to a single process
    return _define(open_catalogue(project), _Choices(executor=dg.in_process_executor))


def _define(catalogue: Catalogue, choices: _Choices) -> dg.Definitions:
    """Return the definitions of a catalogue.

    If Dagster refuses to load them together, they are loaded pipeline by pipeline, and those that fail are left out.
    """
    whole = _resolved(catalogue, choices)
    if isinstance(whole, dg.Definitions):
        return whole
    alone = {bound.id: _resolved(replace(catalogue, bound=[bound]), choices) for bound in catalogue.bound}
    refused = {name: one for name, one in alone.items() if isinstance(one, Exception)}
    return _definitions(catalogue, choices, refused)


def _resolved(catalogue: Catalogue, choices: _Choices) -> dg.Definitions | Exception:
    """Return the definitions, or the error with which Dagster refuses them. Dagster caches the resolved definitions."""
    try:
        defined = _definitions(catalogue, choices, {})
        defined.get_repository_def()
    except Exception as error:  # noqa: BLE001  # whatever it is, it must not take the code location down
        return error
    return defined


def _definitions(catalogue: Catalogue, choices: _Choices, refused: Refused) -> dg.Definitions:
    found = define_assets(catalogue, choices.translator, refused)
    project, root = catalogue.project, str(catalogue.project.root)
    spark = SparkResource(root=root) if choices.spark is None else choices.spark
    operators = operator_jobs({keys.pipeline: keys for keys in found.keys.values()})
    # Dagster requires a sensor to have jobs, and broken files have none: their checks need the sensors all the same
    launched = [job for job in found.jobs if job.name in found.keys] or operators
    sensors = define_sensors(project, launched, found.keys) if catalogue.loaded.files else []
    return dg.Definitions(
        assets=found.assets,
        asset_checks=found.checks,
        jobs=[*found.jobs, *operators],
        sensors=sensors,
        schedules=define_schedules(catalogue.bound, {job.name: job for job in found.jobs}),
        resources={"conduit_spark": spark, "conduit_state": StateResource(root=root)},
        executor=choices.executor,
    )


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions that Dagster loads."""
    return define(Project.find(Path.cwd()))
