"""A project in a temporary folder, with helpers for tests."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pyspark.sql import SparkSession
from ruamel.yaml import YAML

from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import Catalogue, open_catalogue
from conduit_dagster.engine.operate.letters import DeadLetterSelection, replay
from conduit_dagster.engine.operate.pipeline_lock import owned
from conduit_dagster.engine.report import RunProgress, RunResult, StepReport
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.engine.supervisor import run_pipeline
from conduit_dagster.state.claim import open_store
from conduit_dagster.state.database import open_database
from conduit_dagster.state.dead_letters import DeadLetterQuery, Key

Crashes = Callable[["Lab", str], None]
"""Runs the pipeline of a lab until it crashes at the named point; the fixture ``crashes``."""

SHARED = Path(__file__).parents[2].parent / "shared"


def ignore(step: StepReport, progress: RunProgress) -> None:
    """Observe nothing."""


class Lab:
    """Files in, pipelines run, files out."""

    def __init__(self, root: Path, spark: SparkSession | None = None) -> None:
        self.root = root
        self.env: dict[str, str] = {}
        """The environment visible to the project."""
        self._spark = spark

    def write(self, name: str, lines: Iterable[Any], mode: str = "w") -> Path:
        """Write a file of lines; other values than text are written as JSON."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8") as file:
            file.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        return path

    def pipeline(self, **config: Any) -> None:
        """Write ``pipelines/NAME.yaml`` with one pipeline, available-now by default."""
        config = {"id": "p", "trigger": "available-now", **config}
        folder = self.root / "pipelines"
        folder.mkdir(exist_ok=True)
        with (folder / f"{config['id'].replace(':', '_')}.yaml").open("w") as file:
            YAML().dump({"version": "2.2", "pipelines": [config]}, file)

    @contextmanager
    def store(self) -> Iterator[sa.Engine]:
        """Yield the state store, for access from outside of a run; created if missing."""
        database = open_database(Project.find(self.root, self.env).state_url)
        try:
            yield database
        finally:
            database.dispose()

    def catalogue(self) -> Catalogue:
        """Return the project as a run sees it."""
        return open_catalogue(Project.find(self.root, self.env))

    def run(
        self,
        pipeline: str = "p",
        *,
        drain: bool = True,
        stop: StopFlag | None = None,
        observe: Callable[[StepReport, RunProgress], None] = ignore,
        parallelism: int | None = None,
        **more: Any,
    ) -> RunResult:
        """Run one pipeline in this process on the shared session. ``more``: further fields of ``RunOptions``."""
        assert self._spark is not None
        catalogue = self.catalogue()
        bound = catalogue.get(pipeline)
        assert bound is not None, "\n".join(finding.render() for finding in catalogue.findings)
        project = catalogue.project
        options = RunOptions(project.staging_url, drain=drain, parallelism=parallelism, log=project.log_url, **more)
        database = open_store(project.state_url, project.home)
        try:
            return run_pipeline(bound, self._spark, database, options, stop or StopFlag(), observe)
        finally:
            database.dispose()

    def replay(self, pipeline: str = "p", keys: Sequence[Key] | None = None, **more: Any) -> dict[str, Any]:
        """Replay a pipeline's open dead letters, or those with these keys, in this process on the shared session."""
        session = self._spark
        assert session is not None
        catalogue = self.catalogue()
        bound, project = catalogue.get(pipeline), catalogue.project
        assert bound is not None, "\n".join(finding.render() for finding in catalogue.findings)
        options = RunOptions(project.staging_url, log=project.log_url)
        database = open_store(project.state_url, project.home)
        try:
            with owned(bound, database, options, lambda: session, "a test") as lock:
                return replay(lock, DeadLetterSelection(DeadLetterQuery(keys=keys)), **more)
        finally:
            database.dispose()

    def lines(self, name: str) -> list[str]:
        """Return a file's lines; none if it is missing."""
        path = self.root / name
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def documents(self, name: str) -> list[Any]:
        """Return a file's lines as JSON values."""
        return [json.loads(line) for line in self.lines(name)]

    def letters(self, name: str = "dead.jsonl") -> list[tuple[str, str, Any]]:
        """Return node id, reason and failed payload of each dead letter; raw payloads as text."""
        return [_letter(row) for row in self.documents(name)]


def _letter(row: dict[str, Any]) -> tuple[str, str, Any]:
    metadata, after = row["metadata"], row["payload"]["after"]["payload"]["after"]
    if isinstance(after, str):
        after = base64.b64decode(after).decode("utf-8", "replace")
    return metadata["conduit.dlq.nack.node.id"], metadata["conduit.dlq.nack.error"], after


def source(path: str = "./in.jsonl", **more: Any) -> dict[str, Any]:
    """Return a file source named ``in``."""
    return {"id": "in", "type": "source", "plugin": "builtin:file", "settings": {"path": path}, **more}


def destination(name: str = "out", path: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a file destination of plain payload lines."""
    settings = {"path": path or f"./{name}.jsonl", "sdk.record.format": "payload/json"}
    return {"id": name, "type": "destination", "plugin": "builtin:file", "settings": settings, **more}


def processor(name: str, plugin: str, condition: str | None = None, **settings: str) -> dict[str, Any]:
    """Return a processor; pass setting names with dots through ``**``."""
    found: dict[str, Any] = {"id": name, "plugin": plugin, "settings": settings}
    return {**found, "condition": condition} if condition else found


DECODE = processor("decode", "json.decode", field=".Payload.After")


def queue(size: int = 0, threshold: int = 0, path: str = "./dead.jsonl") -> dict[str, Any]:
    """Return a file dead-letter queue."""
    return {
        "plugin": "builtin:file",
        "settings": {"path": path},
        "window-size": size,
        "window-nack-threshold": threshold,
    }
