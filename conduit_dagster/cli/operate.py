"""Code shared by the operator's verbs: the pipeline, its state, and the lease to change it."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conduit_dagster.cli.verb import Outcome, current_project, usage_error

if TYPE_CHECKING:
    import sqlalchemy as sa
    from pyspark.sql import SparkSession

    from conduit_dagster.engine.operate.pipeline_lock import PipelineLock
    from conduit_dagster.engine.operate.subject import Subject

Pipeline = Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline's id.")]
Source = Annotated[
    str | None, typer.Option("--source", metavar="SOURCE", help="The source; needed where there are several.")
]
Files = Annotated[
    list[str] | None, typer.Option("--file", metavar="PATH", help="The pipeline's file, if it is elsewhere.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
Facts = dict[str, Any]
LARGEST = 10**18 - 1
"""Largest number that an option takes: every database and file can hold it, and one more."""


def subjects(files: Sequence[str] | None, accept_new: bool = False) -> list[Subject]:
    """Return every pipeline in the project's files, then those known only to the state store."""
    from conduit_dagster.engine.operate.subject import subjects as every

    return every(current_project().accepting_new_state(accept_new), files or ())


def subject(pipeline: str, files: Sequence[str] | None, accept_new: bool = False) -> Subject:
    """Return the pipeline with this id. Raises ``FatalError`` (``usage.unknown_pipeline``), suggesting the nearest.

    ``accept_new``: same as ``state.accept-new``.
    """
    from conduit_dagster.engine.operate.subject import subject as find

    return find(current_project().accepting_new_state(accept_new), pipeline, files or ())


def operated(
    one: Subject,
    work: Callable[[PipelineLock, sa.Engine], Facts],
    told: Callable[[Facts], str],
    dry_run: bool,
    fresh: bool = False,
) -> Outcome:
    """Run a verb that changes a stopped pipeline under its lease; return facts and summary line.

    Spark starts only if needed. ``fresh``: the pipeline may never have run.
    """
    with ExitStack() as opened:

        def spark() -> SparkSession:
            from conduit_dagster.cli.verb_session import spark_session

            return opened.enter_context(spark_session(one.project))

        with one.locked(spark, who(), fresh) as (lock, database):
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
