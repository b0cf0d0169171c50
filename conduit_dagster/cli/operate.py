"""Code shared by the operator's verbs: the pipeline, its state, and the lease to change it."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conduit_dagster.cli.verb import Outcome, usage_error

if TYPE_CHECKING:
    import sqlalchemy as sa
    from pyspark.sql import SparkSession

    from conduit_dagster.config.project import Project
    from conduit_dagster.engine.bound_pipeline import BoundPipeline
    from conduit_dagster.engine.catalogue import Catalogue
    from conduit_dagster.engine.operate.pipeline_lock import PipelineLock
    from conduit_dagster.engine.run_options import RunOptions

Pipeline = Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline's id.")]
Source = Annotated[
    str | None, typer.Option("--source", metavar="ID", help="The source; needed where there are several.")
]
Files = Annotated[
    list[str] | None, typer.Option("--file", metavar="PATH", help="The pipeline's file, where that is elsewhere.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")]
Facts = dict[str, Any]


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
    def options(self) -> RunOptions:
        """Options that a run would use."""
        from conduit_dagster.engine.run_options import RunOptions

        project, settings = self.project, self.project.settings
        return RunOptions(
            project.staging_url,
            lease_seconds=settings.state.lease,
            parallelism=settings.spark.parallelism,
            log=project.log_url,
        )

    def known(self) -> sa.Engine:
        """Return the state store. Raises ``FatalError`` (``pipeline.never_ran``) if there is none."""
        from conduit_dagster.engine.operate.operator_errors import never_ran

        if self.store is None:
            raise never_ran(self.id)
        return self.store

    def sound(self) -> BoundPipeline:
        """Return the runnable pipeline. Raises ``FatalError`` (``validation.*``) if its file is missing or invalid."""
        from conduit_dagster.recovery.errors import FatalError

        if self.bound is None:
            message = f"pipeline {self.id} can't be operated on: its file is gone or has mistakes"
            raise FatalError(
                message, code="validation.failed", fix="conduit-dagster validate shows them; or --file PATH"
            )
        if refusal := self.bound.refusal():
            raise refusal
        return self.bound


def subjects(files: Sequence[str] | None, accept_new: bool = False) -> list[Subject]:
    """Return every pipeline in the project's files, then those known only to the state store."""
    from conduit_dagster.cli.existing_store import existing_store
    from conduit_dagster.config.project import Project
    from conduit_dagster.engine.catalogue import open_catalogue
    from conduit_dagster.state.overview import pipeline_rows

    catalogue = open_catalogue(Project.find(Path.cwd()).accepting_new_state(accept_new), files or ())
    store = existing_store(catalogue.project)
    known = [*(one.config.id for one in catalogue.loaded.pipelines), *(pipeline_rows(store) if store else ())]
    return [Subject(name, catalogue, catalogue.get(name), store) for name in dict.fromkeys(known)]


def subject(pipeline: str, files: Sequence[str] | None, accept_new: bool = False) -> Subject:
    """Return the pipeline with this id. Raises ``FatalError`` (``usage.unknown_pipeline``) with the nearest one.

    ``accept_new``: as ``state.accept-new``.
    """
    from conduit_dagster.config.findings import did_you_mean

    known = {one.id: one for one in subjects(files, accept_new)}
    if pipeline not in known:
        fix = (
            did_you_mean(pipeline, known)
            or "conduit-dagster pipelines list shows them; --file PATH names one elsewhere"
        )
        raise usage_error(f"there is no pipeline {pipeline} in this project", "unknown_pipeline", fix)
    return known[pipeline]


@contextmanager
def desk_of(one: Subject, fresh: bool = False) -> Generator[tuple[PipelineLock, sa.Engine]]:
    """Hold the pipeline's lease for the duration of a verb; yield it and the store. Spark starts only if needed.

    ``fresh``: the pipeline may never have run.
    """
    from conduit_dagster.engine.operate.pipeline_lock import owned
    from conduit_dagster.state.claim import project_store

    bound, project = one.sound(), one.project
    database = project_store(project) if fresh else one.known()
    with ExitStack() as opened:

        def spark() -> SparkSession:
            from conduit_dagster.cli.verb_session import spark_session

            return opened.enter_context(spark_session(project))

        with owned(bound, database, one.options, spark, who(), fresh) as lock:
            yield lock, database


def operated(
    one: Subject,
    work: Callable[[PipelineLock, sa.Engine], Facts],
    told: Callable[[Facts], str],
    dry_run: bool,
    fresh: bool = False,
) -> Outcome:
    """Run a verb that changes a stopped pipeline under its lease (:func:`desk_of`); return facts and summary line."""
    with desk_of(one, fresh) as (lock, database):
        facts = {**work(lock, database), "dry_run": dry_run}
    return Outcome(told(facts), facts)


def who() -> str:
    """Return the name of the current user, for the history."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""  # a user without a name, as in containers


def parsed_position(text: str, option: str) -> Any:
    """Return the JSON value of an option. Raises ``FatalError`` (``usage.position``)."""
    try:
        return json.loads(text)
    except ValueError as error:
        fix = f"quote it for the shell: {option} '{{\"…\"}}'; conduit-dagster positions show --json prints positions"
        raise usage_error(f"{option} is not JSON: {error}", "position", fix) from None


def words_of(value: Any) -> str:
    """Return a position on one line."""
    return json.dumps(value, ensure_ascii=False)
