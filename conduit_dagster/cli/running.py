"""Pipelines run in parallel on one Spark session, with progress and signals.

The first SIGINT or SIGTERM requests a stop, the second forces it, the third exits at once.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import structlog

from conduit_dagster.cli.progress import Row, live
from conduit_dagster.cli.terminal import console
from conduit_dagster.cli.verb import unforeseen
from conduit_dagster.cli.verb_session import session_opener, spark_session
from conduit_dagster.config.delivery import TIMED
from conduit_dagster.engine.report import RunProgress, RunResult
from conduit_dagster.engine.restart_loop import RestartLoop
from conduit_dagster.engine.run_options import RunOptions, RunRequest
from conduit_dagster.engine.run_status import ONCE, RunOrigin
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.lineage.openlineage import listener_of
from conduit_dagster.metrics.source_lag import source_lag
from conduit_dagster.processes import end_forks_as_usual
from conduit_dagster.recovery.policy import PipelineStatus, Policy
from conduit_dagster.state.claim import project_store

if TYPE_CHECKING:
    import sqlalchemy as sa
    from pyspark.sql import SparkSession

    from conduit_dagster.config.project import Project
    from conduit_dagster.engine.bound_pipeline import BoundPipeline
    from conduit_dagster.engine.report import StepReport
    from conduit_dagster.metrics.collectors import LiveMetrics

_HANDLED: Final = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR: Final = b"\x1b[?25h"


class CommandSignals:
    """Signals received so far, passed on from the main thread's own loop.

    The handler itself never raises, which would corrupt py4j's protocol state, and never touches the flag, whose lock
    the interrupted code may hold.
    """

    def __init__(self, stop: StopFlag, say: Callable[[str], None]) -> None:
        self._stop, self._say = stop, say
        self._seen: list[int] = []
        self._told = 0
        self.patience = 1
        """Signals tolerated before the process exits at once: one while Spark starts, two after that."""

    @property
    def forced_exit(self) -> int | None:
        """Exit code of a forced stop; None if none was requested."""
        return None if self._told < 2 else 128 + self._seen[1]

    def deliver(self) -> None:
        """Pass on the signals received so far. Call this repeatedly from the main thread."""
        while self._told < min(len(self._seen), 2):
            self._told += 1
            if self._told == 1:
                self._stop.request("user" if self._seen[0] == signal.SIGINT else "system")
                self._say("stopping: the step at hand is finished first; once more stops by force")
            else:
                self._stop.force()
                self._say("stopping by force")

    def install(self) -> None:
        """Install the handlers; call this again after Spark has started, which installs its own."""
        end_forks_as_usual(CommandSignals._note)
        for number in _HANDLED:
            signal.signal(number, self._note)

    def note(self, number: int) -> None:
        """Record a signal that arrived differently, as an exception."""
        self._seen.append(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._seen.append(number)
        if len(self._seen) > self.patience:
            if sys.stderr.isatty():
                os.write(2, _SHOW_CURSOR)
            os._exit(128 + number)


@contextmanager
def handled(signals: CommandSignals) -> Generator[None]:
    """Install our handlers for the duration of a run, then restore the former ones."""
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _HANDLED}
    signals.install()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


log = structlog.get_logger("conduit.engine")
_TICK = 0.25
"""Seconds between two checks of the pipelines and of received signals."""
OpenSession = Callable[[], "SparkSession"]


@dataclass(frozen=True)
class RunsEnded:
    """Result of a run."""

    results: list[RunResult]
    forced_exit: int | None


def run_together(
    project: Project,
    pipelines: Sequence[BoundPipeline],
    once: bool,
    verbose: bool = False,
    quiet: bool = False,
    metrics: LiveMetrics | None = None,
    server: bool = True,
) -> RunsEnded:
    """Run until all pipelines have ended. ``quiet``: no progress, even on a terminal. ``metrics``: metrics to update.

    ``server``: whether Spark may outlive the run if the project does not configure it. Raises if none of the pipelines
    can start: no Java, no Spark, no state store.
    """
    stop = StopFlag()
    signals = CommandSignals(stop, lambda text: print(text, file=sys.stderr))
    shown = not quiet and console().is_interactive
    with handled(signals):
        database = project_store(project)
        # a single pipeline that runs for days gains nothing from a server
        server = server and (once or len(pipelines) > 1)
        with spark_session(project, verbose, signals, shown, server):
            # the session has installed its own handler; from here on a second signal can be obeyed
            signals.install()
            signals.patience = 2
            crew = [_Member(project, bound, once, metrics) for bound in pipelines]
            # called for each attempt: Spark may have ended since
            session = session_opener(project, verbose, server)
            _run(project, crew, stop, signals, session, database, shown)
    return RunsEnded([member.result for member in crew], signals.forced_exit)


def _run(
    project: Project,
    crew: list[_Member],
    stop: StopFlag,
    signals: CommandSignals,
    session: OpenSession,
    database: sa.Engine,
    shown: bool,
) -> None:
    signals.deliver()
    for member in crew:
        member.obey(stop)
        member.start(session, database)
    with live([member.row for member in crew], console(), sys.stderr.isatty()) if shown else nullcontext():
        while any(member.is_running() for member in crew):
            signals.deliver()
            degraded = any(member.result.status == PipelineStatus.DEGRADED for member in crew)
            if degraded and project.settings.pipelines.exit_on_degraded:
                stop.request("system")
            for member in crew:
                member.obey(stop)


class _Member:
    """One pipeline and its thread."""

    def __init__(self, project: Project, bound: BoundPipeline, once: bool, metrics: LiveMetrics | None) -> None:
        self.row = Row(bound)
        self._tally = None if metrics is None else metrics.add(bound, lambda: self.row.status, source_lag)
        self.result = RunResult(bound.id, PipelineStatus.RUNNING, "", None, RunProgress())
        self._stop = StopFlag()
        self._bound, self._once = bound, once
        drain = once or bound.config.trigger.kind != "continuous"
        # --once waits for the end, and a failure is final; a restart that was pending is left to who would make it
        run = f"{ONCE if once else 'run-'}{secrets.token_hex(6)}"
        policy = Policy.of(bound.config.recovery, project.settings.recovery)
        origin = RunOrigin(None if once else policy, run, pending=policy)
        self._options = RunOptions.of(project, drain, origin, listener_of(project))

    def obey(self, stop: StopFlag) -> None:
        """Pass on a stop of all pipelines; a single one may be stopped through the state store."""
        if stop.requested:
            self._stop.request(stop.reason)
        if stop.forced:
            self._stop.force()

    def start(self, session: OpenSession, database: sa.Engine) -> None:
        """Start the pipeline, unless a stop was requested while Spark started."""
        if self._stop.requested:
            self.result = RunResult(self._bound.id, PipelineStatus.STOPPED, self._stop.reason, None, RunProgress())
            return
        # a daemon thread: a third signal must not wait for it
        self._thread = threading.Thread(
            target=self._run, args=(session, database), name=f"pipeline-{self._bound.id}", daemon=True
        )
        self._thread.start()

    def is_running(self) -> bool:
        """Return whether the pipeline is still running, after a short wait."""
        if self.result.status != PipelineStatus.RUNNING:
            return False
        self._thread.join(_TICK)
        return self._thread.is_alive()

    def _observe(self, step: StepReport, progress: RunProgress) -> None:
        self.row.observe(step, progress)
        if self._tally is not None:
            self._tally.observe(step, progress)

    def _on_status(self, result: RunResult) -> None:
        self.row.tell(result)
        if self._tally is not None:
            self._tally.tell(result)

    def _run(self, session: OpenSession, database: sa.Engine) -> None:
        try:
            restarts = RestartLoop(
                RunRequest(self._bound, database, self._options, self._stop, self._observe, self._on_status)
            )
            trigger = None if self._once else self._bound.config.trigger
            if trigger is not None and trigger.kind in TIMED:
                self.result = restarts.timed(session, trigger)
            else:
                self.result = restarts.run(session)
        except BaseException as error:  # noqa: BLE001  # the others go on, and the summary must say it
            known = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            self.result = RunResult(self._bound.id, PipelineStatus.DEGRADED, "", unforeseen(known), RunProgress())
        self.row.status = self.result.status
        error = self.result.error
        # the others may run for days before the summary says it
        if error is not None and not self._once:
            log.error("ended", pipeline=self._bound.id, status=self.result.status, code=error.code, cause=error.message)
