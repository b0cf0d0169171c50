"""Running pipelines of the kill matrix in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from pyspark.sql import SparkSession

from conduit_dagster.config.project import Project
from conduit_dagster.connectors import kept_lists
from conduit_dagster.engine.bound_pipeline import BoundPipeline, open_catalogue
from conduit_dagster.engine.operate.letters import DeadLetterSelection, replay
from conduit_dagster.engine.operate.pipeline_lock import owned
from conduit_dagster.engine.report import RunResult
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.engine.supervisor import run_pipeline
from conduit_dagster.recovery.errors import ConduitError, TransientError
from conduit_dagster.state.database import open_database

T = TypeVar("T")

SIDE_BY_SIDE = 4
_RESTARTS = 20


class Runs:
    """Runs pipelines of one project on one session, each from its file as a new process would.

    Meanwhile every file that was read completely leaves its position at once.
    """

    def __init__(self, root: Path, spark: SparkSession) -> None:
        self._project, self._spark = Project.find(root, {}), spark
        self._options = RunOptions(self._project.staging_url, drain=True, log=self._project.log_url)
        self.database = open_database(self._project.state_url)

    def __enter__(self) -> Self:
        self._leaves_at, kept_lists.LEAVES_AT = kept_lists.LEAVES_AT, 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        kept_lists.LEAVES_AT = self._leaves_at
        self.database.dispose()

    def once(self, pipeline: str) -> RunResult:
        """One run."""
        return run_pipeline(self._bound(pipeline), self._spark, self.database, self._options, StopFlag())

    def replay(self, pipeline: str) -> dict[str, Any] | None:
        """One replay of all open dead letters; None if none is open."""
        bound = self._bound(pipeline)
        try:
            with owned(bound, self.database, self._options, lambda: self._spark, "the kill matrix") as lock:
                return replay(lock, DeadLetterSelection())
        except ConduitError as error:
            if error.code != "dead_letters.none":
                raise
            return None

    def _bound(self, pipeline: str) -> BoundPipeline:
        file = Path(self._project.pipelines_path, f"{pipeline}.yaml")
        catalogue = open_catalogue(self._project, [file])
        bound = catalogue.get(pipeline)
        assert bound is not None, "\n".join(finding.render() for finding in catalogue.findings)
        return bound

    def to_the_end(self, pipeline: str) -> RunResult:
        """Run again after transient errors, as recovery does; an unclassified bulk error is one."""
        result = self.once(pipeline)
        for _ in range(_RESTARTS):
            if not isinstance(result.error, TransientError):
                break
            result = self.once(pipeline)
        return result

    def all(self, pipelines: Iterable[str]) -> dict[str, RunResult]:
        """Run each to its end, a few at a time."""
        return self.each(self.to_the_end, pipelines)

    @staticmethod
    def each(do: Callable[[str], T], pipelines: Iterable[str]) -> dict[str, T]:
        """Apply it to each pipeline, a few at a time."""
        pipelines = list(pipelines)
        with ThreadPoolExecutor(SIDE_BY_SIDE, "run") as pool:
            return dict(zip(pipelines, pool.map(do, pipelines), strict=True))
