"""The pipeline named by an operator: its file, its state store, and the operations on it that need no Spark."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from conduit_dagster.config.findings import did_you_mean
from conduit_dagster.config.folder import load
from conduit_dagster.config.parse import ParsedPipeline
from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import BoundPipeline, Catalogue, open_catalogue
from conduit_dagster.engine.operate.operator_errors import never_ran, refused
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.engine.run_status import end_waiting
from conduit_dagster.processes import is_dead
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.recovery.policy import PipelineStatus
from conduit_dagster.state.claim import existing_store, project_store
from conduit_dagster.state.history import deleted
from conduit_dagster.state.lease import free_silent, is_command
from conduit_dagster.state.overview import locked_row, pipeline_rows, stored_names
from conduit_dagster.state.recovery_state import NEVER, never_began, record_request, recovery_rows, recovery_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conduit_dagster.engine.operate.pipeline_lock import PipelineLock, StoreLock


_LOOK = 0.1
_ENDED = (PipelineStatus.STOPPED, PipelineStatus.DEGRADED)


def ask_start(database: sa.Engine, pipeline: str, by: str, lease_seconds: float) -> bool:
    """Request a start; return False if the pipeline runs already. Watch an owner elsewhere, which may be dead.

    The lifecycle sensor serves the request, or a ``run`` that is waiting for the pipeline's restart.
    """
    free_silent(database, pipeline, lease_seconds)
    return record_request(database, pipeline, "start", by, lambda connection: _runs(connection, pipeline))


def _runs(connection: sa.Connection, pipeline: str) -> bool:
    # locked: a run that begins at this moment is the requested start, and takes the request
    row = locked_row(connection, pipeline)
    # what a command is at work on does not run, also where the run before was killed
    if row is None or not _is_owned(row) or is_command(row["owner"]):
        return False
    # a run that has just ended, or waits for its restart, still holds the lease for a moment
    return row["status"] not in _ENDED and not recovery_state(connection, pipeline).restart_at_ns


def stop(
    database: sa.Engine,
    pipeline: str,
    by: str,
    force: bool,
    lease_seconds: float,
    longest: float,
    starts_itself: bool = False,
) -> bool:
    """Stop the pipeline and wait for its end; return False if it was stopped. Cancels a pending restart (CASES B10).

    ``longest``: seconds to wait for its end. ``starts_itself``: its first start needs no request, and may be waiting
    for its time or in Dagster's queue. Raises ``FatalError`` (``pipeline.never_ran``), ``TransientError``
    (``pipeline.stopping``: requested, but not ended yet).
    """
    row, recovery = pipeline_rows(database).get(pipeline), recovery_rows(database).get(pipeline, NEVER)
    was_stopped = False
    # a start that has not begun yet is withdrawn, even that of a pipeline that never ran
    is_new = recovery == NEVER if row is None else never_began(row, recovery)
    if not (starts_itself and is_new) and recovery.asked != "start":
        if row is None:
            raise never_ran(pipeline)
        was_stopped = (row["status"], row["reason"]) == (PipelineStatus.STOPPED, "user") and not _is_owned(row)
    # even if it was stopped: a run that its schedule launched since may be waiting in Dagster's queue
    record_request(database, pipeline, "force" if force else "stop", by)
    end = time.monotonic() + longest
    while not _is_ended(database, pipeline, lease_seconds):
        if time.monotonic() > end:
            raise _stopping(database, pipeline, longest)
        time.sleep(_LOOK)
    return not was_stopped


def _stopping(database: sa.Engine, pipeline: str, seconds: float) -> TransientError:
    words, stop = shlex.quote(pipeline), "conduit-dagster pipelines stop"
    row = pipeline_rows(database).get(pipeline)
    if row is not None and is_command(row["owner"]):
        why = f"a command is at work on it, in process {row['owner']['pid']} on {row['owner']['host']}"
        fix = f"wait for that command's end, then repeat: {stop} {words}"
    else:
        why = f"has not ended within {seconds:g} s"
        fix = f"wait for the step at hand, or stop it by force: {stop} {words} --force"
    return TransientError(f"pipeline {pipeline} was asked to stop and {why}", code="pipeline.stopping", fix=fix)


def _is_ended(database: sa.Engine, pipeline: str, lease_seconds: float) -> bool:
    row = pipeline_rows(database).get(pipeline)
    if row is not None and _is_owned(row) and not free_silent(database, pipeline, lease_seconds):
        return False  # its owner polls the store twice a second
    # its last owner has taken the request; without an owner, pending work ends here
    recovery = recovery_rows(database).get(pipeline, NEVER)
    return not recovery.asked or end_waiting(database, pipeline, "user", lease_seconds)


def _is_owned(row: dict[str, Any]) -> bool:
    return row["owner"] is not None and not is_dead(row["owner"])


_SHUTDOWN = 30.0
"""Shutdown timeout in seconds for a pipeline whose file is missing."""
_MARGIN = 15.0
"""Seconds on top of shutdown timeout and lease within which a run must have ended."""


@dataclass(frozen=True)
class Subject:
    """One pipeline, with its file and its state store."""

    id: str
    catalogue: Catalogue
    bound: BoundPipeline | None
    """None if its file is missing or has errors."""
    store: sa.Engine | None
    """None if nothing in the project has ever run."""

    @property
    def project(self) -> Project:
        """Project of the pipeline."""
        return self.catalogue.project

    @property
    def has_file(self) -> bool:
        """Whether a file names the pipeline, valid or not."""
        return any(parsed.config.id == self.id for parsed in self.catalogue.loaded.pipelines)

    @property
    def redact(self) -> list[str]:
        """Fields that its file redacts, valid or not; without one those of the file it last ran from, else none."""
        read = self.catalogue.loaded.pipelines if self.has_file else self._last_read()
        return [field for parsed in read if parsed.config.id == self.id for field in parsed.config.redact]

    def _last_read(self) -> list[ParsedPipeline]:
        """Return what is in the file of its last run, which may lie outside of the project's folder of pipelines."""
        row = pipeline_rows(self.store).get(self.id) if self.store is not None else None
        if row is None or not row["file"]:
            return []
        return load([self.project.root / row["file"]], root=self.project.root).pipelines

    @property
    def options(self) -> RunOptions:
        """Options that a run would use."""
        return RunOptions.of(self.project)

    @property
    def is_known(self) -> bool:
        """Whether the state store has the pipeline: it ran, or a command prepared its first run."""
        return self.store is not None and self.id in pipeline_rows(self.store)

    def known(self) -> sa.Engine:
        """Return the state store. Raises ``FatalError`` (``pipeline.never_ran``) if it does not exist."""
        if self.store is None:
            raise never_ran(self.id)
        return self.store

    def sound(self) -> BoundPipeline:
        """Return the runnable pipeline. Raises ``FatalError`` (``validation.*``) if its file is missing or invalid."""
        if self.bound is None:
            raise self._not_runnable()
        self._require_settings()
        if refusal := self.bound.refusal():
            raise refusal
        return self.bound

    def _require_settings(self) -> None:
        if broken := next((finding for finding in self.project.findings if finding.is_error), None):
            # settings with errors keep their defaults, and so name another store, log or staging folder
            raise FatalError(broken.render(), code="validation.failed", fix="correct the project's settings first")

    def _not_runnable(self) -> FatalError:
        why, fix = "its file has errors", "conduit-dagster validate shows them"
        if not self.has_file:
            why = "no file names it any more, or that file can't be read"
            fix = "put its file back, or name it with --file PATH; conduit-dagster validate shows unreadable files"
        return FatalError(f"pipeline {self.id} can't be operated on: {why}", code="validation.failed", fix=fix)

    @contextmanager
    def locked(
        self, spark: Callable[[], SparkSession], by: str, fresh: bool = False
    ) -> Generator[tuple[PipelineLock, sa.Engine]]:
        """Hold the pipeline's lease; yield it and the store. ``spark`` is called only if an operation needs it.

        ``by``: the operator, for the history. ``fresh``: the pipeline may never have run. Raises as :meth:`sound`,
        :meth:`known` and ``owned`` do.
        """
        # takes a tenth of a second, and most verbs only read
        from conduit_dagster.engine.operate.pipeline_lock import owned

        bound = self.sound()
        database = project_store(self.project) if fresh else self.known()
        with owned(bound, database, self.options, spark, by, fresh) as lock:
            yield lock, database

    @contextmanager
    def state_locked(self, by: str) -> Generator[StoreLock]:
        """Hold the pipeline's lease, whatever its file says. Raises as :meth:`known` and ``owned_store`` do."""
        from conduit_dagster.engine.operate.pipeline_lock import owned_store

        self._require_settings()
        with owned_store(self.id, self.known(), self.options, by) as lock:
            yield lock

    def start(self, by: str) -> bool:
        """Request a start; return False if the pipeline runs already. Raises as :meth:`sound` does."""
        self.sound()
        return ask_start(project_store(self.project), self.id, by, self.project.settings.state.lease)

    def stop(self, by: str, force: bool = False) -> bool:
        """Stop the pipeline and wait for its end; return False if it was stopped already.

        Raises ``FatalError`` (``pipeline.never_ran``), ``TransientError`` (``pipeline.stopping``).
        """
        timeout = _SHUTDOWN if self.bound is None else self.bound.config.delivery.shutdown_timeout
        lease = self.project.settings.state.lease
        # by the lifecycle sensor, or at its times
        starts_itself = self.bound is not None and self.bound.config.status == "running"
        return stop(self.known(), self.id, by, force, lease, timeout + lease + _MARGIN, starts_itself)

    @property
    def status(self) -> str:
        """Status in the state store; ``stopped`` if it never ran."""
        row = pipeline_rows(self.known()).get(self.id)
        return PipelineStatus.STOPPED if row is None else row["status"]


def subjects(project: Project, files: Sequence[Path | str] = ()) -> list[Subject]:
    """Return every pipeline in the project's files, or in ``files``, then those that only the state store has.

    Deleted ones are left out. Raises ``FatalError`` (``config.file_unreadable``) if one of ``files`` can't be read.
    """
    catalogue = open_catalogue(project, files)
    _require_read(catalogue, files)
    store = existing_store(project)
    stored = () if store is None else stored_names(store)
    known = [*(one.config.id for one in catalogue.loaded.pipelines), *stored]
    return [Subject(name, catalogue, catalogue.get(name), store) for name in dict.fromkeys(known)]


def _require_read(catalogue: Catalogue, files: Sequence[Path | str]) -> None:
    named = {str(file) for file in files}
    for finding in catalogue.loaded.findings:
        if finding.code == "config.file_unreadable" and finding.file in named:
            raise FatalError(finding.message, code=finding.code, place=finding.file, fix=finding.fix)


def subject(project: Project, pipeline: str, files: Sequence[Path | str] = ()) -> Subject:
    """Return the pipeline with this id.

    Raises ``FatalError`` (``config.file_unreadable``; ``usage.unknown_pipeline``, suggesting the nearest).
    """
    known = {one.id: one for one in subjects(project, files)}
    if pipeline not in known:
        listed = "conduit-dagster pipelines list shows them; --file PATH names one elsewhere"
        message = f"there is no pipeline {pipeline} in this project"
        raise refused("usage.unknown_pipeline", message, did_you_mean(pipeline, known) or listed)
    return known[pipeline]


def history_store(project: Project, pipeline: str, files: Sequence[Path | str] = ()) -> sa.Engine | None:
    """Return the store with the pipeline's history, also of a deleted one whose file is gone; None without a store.

    Raises ``FatalError`` as ``subject`` does.
    """
    store = existing_store(project)
    if store is not None and pipeline in deleted(store):
        return store
    return subject(project, pipeline, files).store
