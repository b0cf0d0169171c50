"""``pipelines start`` and ``stop``: for whoever runs the pipeline, wherever that is."""

from __future__ import annotations

from typing import Annotated

import typer

from conduit_dagster.cli.operate import Files, Pipeline, subject, who
from conduit_dagster.cli.outcome import Outcome
from conduit_dagster.cli.verb import AsJson, perform

Force = Annotated[bool, typer.Option("--force", help="Cancel the step at hand; the pipeline is degraded then.")]
_MARGIN = 15.0
"""Seconds on top of the shutdown timeout in which a run must have ended."""


def start(pipeline: Pipeline, files: Files = None, as_json: AsJson = False) -> None:
    """Start a pipeline that was stopped, is degraded, or waits for its restart."""
    perform("pipelines start", as_json, lambda: _start(pipeline, files))


def stop(pipeline: Pipeline, force: Force = False, files: Files = None, as_json: AsJson = False) -> None:
    """Stop a pipeline, wherever it runs, and wait for its end; a pending restart never happens."""
    perform("pipelines stop", as_json, lambda: _stop(pipeline, force, files))


def _start(pipeline: str, files: list[str] | None) -> Outcome:
    from conduit_dagster.engine.operate.starting import ask_start
    from conduit_dagster.state.claim import project_store

    one = subject(pipeline, files)
    one.sound()
    asked = ask_start(project_store(one.project), pipeline, who())
    where = "Dagster's lifecycle sensor starts it; without a daemon: conduit-dagster run"
    return Outcome(f"{pipeline}: asked to start ({where})" if asked else f"{pipeline} runs already", {"asked": asked})


def _stop(pipeline: str, force: bool, files: list[str] | None) -> Outcome:
    from conduit_dagster.engine.operate.starting import stop as stop_pipeline

    one = subject(pipeline, files)
    timeout = 30.0 if one.bound is None else one.bound.config.delivery.shutdown_timeout
    lease = one.project.settings.state.lease
    stopped = stop_pipeline(one.known(), pipeline, who(), force, lease, timeout + lease + _MARGIN)
    return Outcome(f"{pipeline}: stopped" if stopped else f"{pipeline} was stopped already", {"stopped": stopped})
