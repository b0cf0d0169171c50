"""Runs pipelines side by side on one Spark session, with signals and progress."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conduit_dagster.cli.outcome import unforeseen
from conduit_dagster.cli.progress import Row, live
from conduit_dagster.cli.session import spark_session
from conduit_dagster.cli.signals import Signals, handled
from conduit_dagster.cli.terminal import console
from conduit_dagster.engine.report import Progress, RunResult
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.engine.supervisor import RunOptions, run_pipeline
from conduit_dagster.state.claim import open_store

if TYPE_CHECKING:
    import sqlalchemy as sa
    from pyspark.sql import SparkSession

    from conduit_dagster.config.project import Project
    from conduit_dagster.engine.planner import BoundPipeline

_TICK = 0.05


@dataclass(frozen=True)
class Ended:
    """What came of a run."""

    results: list[RunResult]
    stopped: bool
    """Whether somebody asked for its end."""
    forced_exit: int | None


def run_together(
    project: Project,
    pipelines: Sequence[BoundPipeline],
    once: bool,
    verbose: bool = False,
    quiet: bool = False,
) -> Ended:
    """Runs until all have ended. ``quiet``: no progress, whatever stdout is.

    Raises what keeps all of them from starting: no Java, no Spark, no state store.
    """
    stop = StopFlag()
    signals = Signals(stop, lambda text: print(text, file=sys.stderr))
    shown = not quiet and console().is_interactive
    with handled(signals):
        database = open_store(project.state_url, project.home)
        with spark_session(project, verbose, signals, shown) as spark:
            # the session has brought its own handler, and from here a second signal can be obeyed
            signals.install()
            signals.patience = 2
            crew = [_Member(project, bound, stop, once) for bound in pipelines]
            _run(project, crew, signals, spark, database, shown)
    return Ended([member.result for member in crew], stop.requested, signals.forced_exit)


def _run(
    project: Project,
    crew: list[_Member],
    signals: Signals,
    spark: SparkSession,
    database: sa.Engine,
    shown: bool,
) -> None:
    signals.deliver()
    for member in crew:
        member.start(spark, database)
    with _display(crew, shown):
        while any(member.is_running() for member in crew):
            signals.deliver()
            if project.settings.pipelines.exit_on_degraded:
                _end_all(crew)


def _display(crew: list[_Member], shown: bool) -> AbstractContextManager[None]:
    if not shown:
        return nullcontext()
    return live([member.row for member in crew], console(), sys.stderr.isatty())


def _end_all(crew: list[_Member]) -> None:
    if any(member.result.status == "degraded" for member in crew):
        crew[0].stop.request("system")


class _Member:
    """One pipeline and its thread."""

    def __init__(self, project: Project, bound: BoundPipeline, stop: StopFlag, once: bool) -> None:
        self.row = Row(bound)
        self.stop = stop
        self.result = RunResult(bound.id, "running", "", None, Progress())
        self._bound = bound
        settings = project.settings
        self._options = RunOptions(
            project.staging_url,
            drain=once or bound.config.trigger.kind == "available-now",
            lease_seconds=settings.state.lease,
            parallelism=settings.spark.parallelism,
            log=project.log_url,
        )

    def start(self, spark: SparkSession, database: sa.Engine) -> None:
        """Starts it, unless the end was asked for while Spark started."""
        if self.stop.requested:
            self.result = RunResult(self._bound.id, "stopped", self.stop.reason, None, Progress())
            return
        # a daemon: a third signal must not wait for it
        self._thread = threading.Thread(
            target=self._run, args=(spark, database), name=f"pipeline-{self._bound.id}", daemon=True
        )
        self._thread.start()

    def is_running(self) -> bool:
        """Whether it runs; waits for a moment to see."""
        if self.result.status != "running":
            return False
        self._thread.join(_TICK)
        return self._thread.is_alive()

    def _run(self, spark: SparkSession, database: sa.Engine) -> None:
        try:
            self.result = run_pipeline(self._bound, spark, database, self._options, self.stop, self.row.observe)
        except Exception as error:  # noqa: BLE001  # the others go on, and the summary must say it
            self.result = RunResult(self._bound.id, "degraded", "", unforeseen(error), Progress())
        self.row.status = self.result.status
