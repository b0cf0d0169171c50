"""The pipelines of a project as their files say now; read again only when a file changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from assets.names import job_name
from conduit_dagster.config.project import Project
from conduit_dagster.engine.catalogue import open_catalogue
from conduit_dagster.engine.planner import BoundPipeline
from conduit_dagster.recovery.policy import Policy
from sensors.known import File, Stored

_Signature = frozenset[tuple[str, int, int]]


class Files:
    """The files of one code location. Pipelines that came after it was loaded have no job there: they are left out."""

    def __init__(self, root: Path, jobs: frozenset[str]) -> None:
        self._root, self._jobs = root, jobs
        self._signature: _Signature | None = None
        self._files: list[File] = []
        self._ids: set[str] = set()
        self._is_whole = False

    def read(self) -> tuple[Project, list[File]]:
        """The project's settings and its pipelines; a broken file takes only its own pipelines away."""
        project = Project.find(self._root)
        signature = frozenset(_stats(project))
        if signature != self._signature:
            self._files = list(self._read(project))
            self._signature = signature
        return project, self._files

    def gone(self, rows: Mapping[str, Stored]) -> list[str]:
        """Pipelines at rest whose file is gone; none while a file is broken, which may be theirs."""
        return [name for name, row in rows.items() if self._is_whole and name not in self._ids and not row.owned]

    def _read(self, project: Project) -> Iterator[File]:
        catalogue = open_catalogue(project)
        self._ids = {parsed.config.id for parsed in catalogue.loaded.pipelines}
        self._is_whole = not any(finding.is_error for finding in catalogue.findings)
        for bound in catalogue.bound:
            name = job_name(bound.id)
            if name in self._jobs:
                yield _file(bound, name, project)


def _file(bound: BoundPipeline, job: str, project: Project) -> File:
    policy = Policy.of(bound.config.recovery, project.settings.recovery)
    config = bound.config
    runnable = bound.refusal() is None
    running = config.status == "running"
    return File(bound.id, job, running, config.trigger.kind, bound.digest, policy, bound.file, runnable)


def _stats(project: Project) -> Iterator[tuple[str, int, int]]:
    """What changes with any file that a pipeline or the project is made of."""
    for top in (project.root / "conduit.yaml", project.pipelines_path, project.root / "plugins"):
        for path in [top, *sorted(top.rglob("*"))] if top.is_dir() else [top]:
            if path.exists() and "__pycache__" not in path.parts:
                stat = path.stat()
                yield str(path), stat.st_mtime_ns, stat.st_size
