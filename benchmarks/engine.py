"""Run a project's pipeline with this engine, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import open_catalogue
from conduit_dagster.engine.report import RunProgress, StepReport
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.engine.supervisor import run_pipeline
from conduit_dagster.state.claim import open_store

Observer = Callable[[StepReport, RunProgress], None]


def _ignore(step: StepReport, progress: RunProgress) -> None:
    del step, progress


def drain(root: Path, spark: SparkSession) -> float:
    """Return the seconds until everything is delivered and acked, with lease, start-up recovery and all commits."""
    return _run(root, spark, True, StopFlag(), _ignore)


def follow(root: Path, spark: SparkSession, stop: StopFlag, observe: Observer) -> None:
    """Run until ``stop``; ``observe`` is called after each step."""
    _run(root, spark, False, stop, observe)


def _run(root: Path, spark: SparkSession, to_the_end: bool, stop: StopFlag, observe: Observer) -> float:
    catalogue = open_catalogue(Project.find(root, {}))
    bound = catalogue.get("bench")
    assert bound is not None, [finding.render() for finding in catalogue.findings]
    database = open_store(catalogue.project.state_url, catalogue.project.home)
    project = catalogue.project
    options = RunOptions(project.staging_url, drain=to_the_end, log=project.log_url)
    began = time.perf_counter()
    result = run_pipeline(bound, spark, database, options, stop, observe)
    seconds = time.perf_counter() - began
    database.dispose()
    assert result.error is None, result.error
    return seconds
