"""Snapshot of each pipeline from its file, the state store and Dagster's run storage."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from conduit_dagster.assets.names import job_name
from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.builtin_plugins import PROCESSORS
from conduit_dagster.config.findings import Finding
from conduit_dagster.config.pipeline import Pipeline
from conduit_dagster.config.project import Project
from conduit_dagster.config.references import FileStamp, stamp_of
from conduit_dagster.engine.bound_pipeline import BoundPipeline, Catalogue, open_catalogue
from conduit_dagster.processes import is_dead
from conduit_dagster.recovery.policy import Policy
from conduit_dagster.sensors.dagster_runs import LastRun
from conduit_dagster.state.claim import is_kept, project_store
from conduit_dagster.state.database import reading
from conduit_dagster.state.recovery_state import NEVER, RecoveryState, recovery_states
from conduit_dagster.state.tables import pipelines


@dataclass(frozen=True)
class File:
    """Desired state of a pipeline, from its file."""

    pipeline: str
    job: str
    running: bool
    """``status: running``."""
    trigger: str
    """``continuous``, ``available-now``, or a timed one, which has a schedule."""
    digest: str
    policy: Policy
    place: str
    """The file's path."""
    keys: AssetKeys
    """Asset keys of the pipeline."""
    runnable: bool = True
    """False if a run would be refused."""
    since_ns: int = 0
    """When this process first saw it as it is; it had errors before, or another digest."""


@dataclass(frozen=True)
class Stored:
    """State in the state store; all empty for a pipeline that never ran."""

    status: str = ""
    reason: str = ""
    owned: bool = False
    """Whether an owner holds the lease and is alive, or has not been silent for long enough."""
    recovery: RecoveryState = NEVER
    epoch: int = 0
    """Epoch of the owner that ``owned`` is about; 0 if there was none."""
    written_ns: int = 0
    """Time of the last run's end, or later; 0 while an owner is alive, whose every transaction would change it."""


@dataclass(frozen=True)
class KnownPipeline:
    """Everything known about a pipeline."""

    file: File
    stored: Stored
    run: LastRun | None
    """None if it never ran; not looked up while the pipeline is owned."""
    began: LastRun | None = None
    """The run that began last, where ``run`` is a later one: it was refused, or is about to begin."""

    def found(self, run_id: str) -> LastRun | None:
        """Return the run of the pipeline's own job with this id, if it is known in Dagster."""
        return next((one for one in self._runs(run_id) if one.is_own), None)

    def was_terminated(self, run_id: str) -> bool:
        """Return whether a user has terminated this run, of whichever job."""
        return any(one.cancelled for one in self._runs(run_id))

    def _runs(self, run_id: str) -> list[LastRun]:
        return [one for one in (self.run, self.began) if one is not None and one.run_id == run_id]


_Signature = frozenset[tuple[str, int, int]]
"""Path, mtime in ns and size of each file."""
_Stamps = dict[str, FileStamp | None]


class Files:
    """Files of one code location. Pipelines added after it was loaded have no job there and are left out."""

    def __init__(self, root: Path, keys: Mapping[str, AssetKeys]) -> None:
        """``keys``: asset keys of each pipeline, by the name of its job."""
        self._root, self._keys = root, keys
        self._signature: _Signature | None = None
        self._files: list[File] = []
        self._ids: set[str] = set()
        self._is_whole = False
        self._secret_files: _Stamps = {}
        self._scripts: set[Path] = set()
        self._findings: list[Finding] | None = None
        self._again = False
        self._changed: Catalogue | None = None

    def read(self) -> tuple[Project, list[File]]:
        """Return the project's settings and its pipelines; a broken file removes only its own pipelines."""
        project = Project.find(self._root)
        signature = self._signature_of(project)
        is_changed = signature != self._signature or self._has_other_secrets()
        if is_changed or self._again:
            catalogue = open_catalogue(project)
            if is_changed or catalogue.findings != self._findings:
                self._changed, self._findings = catalogue, catalogue.findings
            self._files = list(self._read(project, catalogue))
            self._signature = self._signature_of(project) if is_changed else signature
        return project, self._files

    def take_changed(self) -> Catalogue | None:
        """Return the catalogue, once for each time the files changed; a tick that fails must not take it."""
        changed, self._changed = self._changed, None
        return changed

    def current_digests(self) -> dict[str, str]:
        """Return the digest of each pipeline's file as it is now: what was read before may be older."""
        return {bound.id: bound.digest for bound in open_catalogue(Project.find(self._root)).bound}

    def forget(self) -> None:
        """Read the files again at the next tick."""
        self._signature = None

    def _signature_of(self, project: Project) -> _Signature:
        paths = [path for path in (*_paths(project), *self._scripts) if path.exists()]
        return frozenset((str(path), stat.st_mtime_ns, stat.st_size) for path in paths for stat in [path.stat()])

    def gone(self, rows: Mapping[str, Stored]) -> list[str]:
        """Return pipelines without an owner whose file is missing; none while a file is broken, which may be theirs."""
        return [name for name, row in rows.items() if self._is_whole and name not in self._ids and not row.owned]

    def _has_other_secrets(self) -> bool:
        return any(stamp_of(path) != stamp for path, stamp in self._secret_files.items())

    def _read(self, project: Project, catalogue: Catalogue) -> Iterator[File]:
        self._scripts = {path for parsed in catalogue.loaded.pipelines for path in _scripts(catalogue, parsed.config)}
        references = [parsed.document.references for parsed in catalogue.loaded.pipelines]
        self._secret_files = {path: stamp for one in references for path, stamp in one.files.items()}
        # a failed provider of secrets may answer the next time, without any change of a file
        self._again = any(one.failed for one in references)
        self._ids = {parsed.config.id for parsed in catalogue.loaded.pipelines}
        self._is_whole = not any(finding.is_error for finding in catalogue.findings)
        before, now_ns = {(file.pipeline, file.digest): file.since_ns for file in self._files}, time.time_ns()
        for bound in catalogue.bound:
            name = job_name(bound.id)
            if name in self._keys:
                file = _file(bound, name, self._keys[name], project)
                yield replace(file, since_ns=before.get((bound.id, bound.digest), now_ns))


def _file(bound: BoundPipeline, job: str, keys: AssetKeys, project: Project) -> File:
    policy = Policy.of(bound.config.recovery, project.settings.recovery)
    config = bound.config
    runnable = bound.refusal() is None
    running = config.status == "running"
    return File(bound.id, job, running, config.trigger.kind, bound.digest, policy, bound.file, keys, runnable)


def _scripts(catalogue: Catalogue, config: Pipeline) -> Iterator[Path]:
    """Yield the files outside of plugins/ whose text is a part of the pipeline."""
    for processor in config.all_processors:
        kind = PROCESSORS.find(processor.plugin, catalogue.plugins.processors)
        if kind is not None:
            yield from kind.files(processor.settings, str(catalogue.project.root))


def _paths(project: Project) -> Iterator[Path]:
    """Yield every file and folder that a pipeline or the project consists of."""
    settings, plugins = project.root / "conduit.yaml", project.root / "plugins"
    for top in (settings, project.component_path, project.pipelines_path, plugins):
        for path in [top, *sorted(top.rglob("*"))] if top.is_dir() else [top]:
            if "__pycache__" not in path.parts:
                yield path


class CachedStore:
    """State store that is opened once, and reopened if the settings name another one or its file was replaced."""

    def __init__(self) -> None:
        self._opened: tuple[object, sa.Engine] | None = None

    def of(self, project: Project) -> sa.Engine:
        """Return the project's store. Errors of opening it propagate."""
        settings = (project.state_url, project.settings.state.history)
        if self._opened is None or self._opened[0] != settings or not is_kept(self._opened[1]):
            if self._opened is not None:
                self._opened[1].dispose()
            self._opened = None
            self._opened = (settings, project_store(project))
        return self._opened[1]


class HeartbeatMonitor:
    """Heartbeats over the ticks of one process: an owner on another machine is dead once it was silent for too long.

    It uses its own monotonic clock: the clocks of other machines do not count (DELIVERY.md, Leases).
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[tuple[int, int], float]] = {}

    def since(self, pipeline: str, epoch: int, heartbeat: int) -> float:
        """Return the seconds without a heartbeat of this owner, as seen by this process."""
        beat, now = (epoch, heartbeat), time.monotonic()
        seen = self._seen.get(pipeline)
        if seen is None or seen[0] != beat:
            self._seen[pipeline] = seen = (beat, now)
        return now - seen[1]


def stored(database: sa.Engine, heartbeats: HeartbeatMonitor, lease_seconds: float) -> dict[str, Stored]:
    """Return the stored state of every pipeline that ever ran or was asked to start, by id."""
    # of one moment: a failure that is recorded in between would be taken for a death
    with reading(database) as connection:
        recoveries = recovery_states(connection)
        rows = connection.execute(sa.select(pipelines)).mappings().all()
    never_ran = {name: Stored(recovery=recovery) for name, recovery in recoveries.items()}
    return never_ran | {
        row["pipeline"]: _stored(row, recoveries.get(row["pipeline"]), _is_owned(row, heartbeats, lease_seconds))
        for row in rows
    }


def _stored(row: Any, recovery: RecoveryState | None, owned: bool) -> Stored:
    return Stored(
        row["status"] if row["next_step"] > 1 or recovery is not None else "",
        row["reason"],
        owned,
        recovery or NEVER,
        row["epoch"],
        row["updated_ns"] if recovery is not None and not owned else 0,
    )


def _is_owned(row: Any, heartbeats: HeartbeatMonitor, lease_seconds: float) -> bool:
    if not row["owner"] or is_dead(json.loads(row["owner"])):
        return False
    return heartbeats.since(row["pipeline"], row["epoch"], row["heartbeat"]) < lease_seconds
