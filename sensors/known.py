"""Snapshot of each pipeline from its file, the state store and Dagster's run storage."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy as sa

from conduit_dagster.assets.names import PROJECT_TAG, job_name
from conduit_dagster.assets.run_op import asked_of, restart_of
from conduit_dagster.assets.stopping import was_terminated
from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.builtin_plugins import PROCESSORS
from conduit_dagster.config.findings import Finding
from conduit_dagster.config.pipeline import Pipeline
from conduit_dagster.config.project import Project
from conduit_dagster.config.references import FileStamp, stamp_of
from conduit_dagster.engine.bound_pipeline import BoundPipeline, Catalogue, open_catalogue
from conduit_dagster.processes import is_dead
from conduit_dagster.recovery.classify import from_dagster
from conduit_dagster.recovery.errors import ConduitError, TransientError
from conduit_dagster.recovery.policy import Policy
from conduit_dagster.state.claim import is_kept, project_store
from conduit_dagster.state.database import reading
from conduit_dagster.state.status_store import NEVER, RecoveryState, recovery_states
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


_START_LIMIT = 180
"""Seconds; also Dagster's default."""


@dataclass(frozen=True)
class LastRun:
    """The newest run of the pipeline's own job."""

    run_id: str
    active: bool
    failed: bool
    cancelled: bool
    created_ns: int
    failure: int | None = None
    """Number of the failure that it follows, if it is a restart."""
    queued: bool = False
    """Whether it waits in Dagster's queue, for as long as the coordinator's limits say."""
    changed_ns: int = 0
    """Time of its last change of status, such as its launch from the queue."""
    asked_ns: int | None = None
    """Time of the newest request when a sensor launched it as a start, or a schedule did."""
    start_limit_ns: int = _START_LIMIT * 1_000_000_000
    """Time from its launch after which it counts as crashed if it has not begun, unless its restart is not due yet."""


@dataclass(frozen=True)
class KnownPipeline:
    """Everything known about a pipeline."""

    file: File
    stored: Stored
    run: LastRun | None
    """None if it never ran; not looked up while the pipeline is owned."""


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
        for bound in catalogue.bound:
            name = job_name(bound.id)
            if name in self._keys:
                yield _file(bound, name, self._keys[name], project)


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


_PAGE = 200
_FEW = 10
_OFFSETS = 900.0
"""Seconds of which every time zone's offset is a multiple."""


class Runs:
    """View of a project's runs in the run storage: the newest page in one query, other runs one by one.

    No query selects by tag where it can be avoided: Dagster would read every run that the project ever had.
    """

    def __init__(self, instance: dg.DagsterInstance, project: str) -> None:
        """``project``: value of ``PROJECT_TAG``."""
        self._instance, self._project = instance, project
        self._newest: dict[str, LastRun | None] = {}
        self._all = False
        self._ahead = 0.0

    def refresh(self) -> None:
        """Reload the newest runs."""
        records = self._instance.get_run_records(limit=_PAGE)
        self._all = len(records) < _PAGE
        self._newest = {}
        told = (clock_ahead(self._instance, record) for record in records[:_FEW])
        self._ahead = next((ahead for ahead in told if ahead is not None), 0.0)
        for record in records:
            if _is_of(record, self._project):
                self._newest.setdefault(record.dagster_run.job_name, _last(self._instance, record, self._ahead))

    def of(self, file: File) -> LastRun | None:
        """Return the newest run of the pipeline's own job."""
        if file.job not in self._newest and not self._all:
            found = newest_run(self._instance, file.job, self._project)
            self._newest[file.job] = None if found is None else _last(self._instance, found, self._ahead)
        return self._newest.get(file.job)


def newest_run(instance: dg.DagsterInstance, job: str, project: str) -> dg.RunRecord | None:
    """Return the newest run of a project's job; another project of the instance may have a job of the same name."""
    newest = instance.get_run_records(dg.RunsFilter(job_name=job), limit=_FEW)
    own = next((record for record in newest if _is_of(record, project)), None)
    if own is None and len(newest) == _FEW:
        tagged = dg.RunsFilter(job_name=job, tags={PROJECT_TAG: project})
        own = next(iter(instance.get_run_records(tagged, limit=1)), None)
    return own


def _is_of(record: dg.RunRecord, project: str) -> bool:
    return record.dagster_run.tags.get(PROJECT_TAG) == project


def clock_ahead(instance: dg.DagsterInstance, record: dg.RunRecord) -> float | None:
    """Return by how many seconds the run storage's times are ahead of UTC; None if the run's events don't tell.

    A database whose time zone is not UTC keeps its local time there, and Dagster reads it as UTC.
    """
    created, begun = record.create_timestamp.timestamp(), record.start_time
    if begun is None or abs(created - begun) > _OFFSETS / 2:
        stats = instance.get_run_stats(record.dagster_run.run_id)
        begun = stats.enqueued_time or stats.launch_time or begun
    return None if begun is None else round((created - begun) / _OFFSETS) * _OFFSETS


def start_limit_ns(instance: dg.DagsterInstance) -> int:
    """Return the longest time that a launched run may take to begin: three minutes, or Dagster's own limit if longer,
    as where a pod has to fetch its image first."""
    return max(_START_LIMIT, instance.run_monitoring_start_timeout_seconds) * 1_000_000_000


def _last(instance: dg.DagsterInstance, record: dg.RunRecord, ahead: float) -> LastRun:
    """``ahead``: see :func:`clock_ahead`."""
    run = record.dagster_run
    terminated = was_terminated(instance, record)
    return LastRun(
        run.run_id,
        not run.is_finished,
        run.status is dg.DagsterRunStatus.FAILURE or (run.status is dg.DagsterRunStatus.CANCELED and not terminated),
        terminated,
        round((record.create_timestamp.timestamp() - ahead) * 1e9),
        restart_of(run),
        run.status is dg.DagsterRunStatus.QUEUED,
        round((record.update_timestamp.timestamp() - ahead) * 1e9),
        asked_of(run),
        start_limit_ns(instance),
    )


def error_of(instance: dg.DagsterInstance, run_id: str) -> ConduitError:
    """Return the error of a run with its class, as far as it was reported; a crashed process is transient."""
    failures = instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    for entry in failures:
        event = entry.dagster_event
        data = None if event is None else event.step_failure_data
        if data is None or data.error is None:
            continue
        told = {} if data.user_failure_data is None else data.user_failure_data.metadata
        metadata = {name: value.value for name, value in told.items()}
        return from_dagster(metadata, data.error.cls_name, data.error.to_string())
    return TransientError(
        f"run {run_id} ended without reporting a result",
        code="run.died",
        fix="nothing to do: it is restarted; if it happens again, look for what ends it (memory, the system's log)",
    )


def config_of(instance: dg.DagsterInstance, run_id: str) -> dict[str, object]:
    """Return the config of the run to repeat; empty if it no longer exists."""
    run = instance.get_run_by_id(run_id) if run_id else None
    return {} if run is None else dict(run.run_config)


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
