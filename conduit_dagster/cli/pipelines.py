"""``pipelines list`` and ``describe``: what the files say and what the state store knows. Starts no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conduit_dagster.cli.history import history
from conduit_dagster.cli.life import start, stop
from conduit_dagster.cli.outcome import Outcome, usage_error
from conduit_dagster.cli.reload import reload
from conduit_dagster.cli.verb import AsJson, Paths, perform

if TYPE_CHECKING:
    from rich.console import Console

    from conduit_dagster.engine.catalogue import Catalogue

app = typer.Typer(no_args_is_help=True, help="The project's pipelines.")
app.command("start")(start)
app.command("stop")(stop)
app.command("history")(history)
app.command("reload")(reload)
Id = Annotated[str, typer.Argument(metavar="ID", help="The pipeline's id.")]


@app.command("list")
def list_(paths: Paths = None, as_json: AsJson = False) -> None:
    """All pipelines with their status and how many findings there are. Without PATH: the project's."""
    perform("pipelines list", as_json, lambda: _list(paths or []))


@app.command("describe")
def describe(pipeline: Id, paths: Paths = None, as_json: AsJson = False) -> None:
    """One pipeline: its parts, where it stands, what went wrong. PATH: its file, where that is elsewhere."""
    perform("pipelines describe", as_json, lambda: _describe(pipeline, paths or []))


def _open(paths: list[str]) -> Catalogue:
    from conduit_dagster.config.project import Project
    from conduit_dagster.engine.catalogue import open_catalogue

    return open_catalogue(Project.find(Path.cwd()), paths)


def _list(paths: list[str]) -> Outcome:
    from conduit_dagster.cli.description import listed
    from conduit_dagster.cli.store import existing_store

    catalogue = _open(paths)
    rows = listed(catalogue, existing_store(catalogue.project))
    summary = _summary(len(rows), len(catalogue.findings))
    return Outcome(summary, {"pipelines": rows}, show=lambda console: _show_list(console, rows))


def _summary(pipelines: int, findings: int) -> str:
    from conduit_dagster.cli.terminal import count

    found = f", {count(findings, 'finding')}: conduit-dagster validate shows them" if findings else ""
    return count(pipelines, "pipeline") + found


def _show_list(console: Console, rows: list[dict[str, Any]]) -> None:
    from conduit_dagster.cli.terminal import print_table, styled

    columns = ("id", "status", "starts", "records", "findings", "file", "error")
    cells = [
        (
            row["id"],
            styled(row["status"] or "", _status(row)),
            row["starts"] or "",
            f"{row['records']:,}",
            row["findings"],
            row["file"] or "no file any more",
            (row["error"] or {}).get("code", ""),
        )
        for row in rows
    ]
    if cells:
        print_table(console, columns, cells)


def _status(row: dict[str, Any]) -> str:
    restart = row["restart"]
    if restart is None:
        return row["status"] or "never ran"
    return f"recovering, restart {restart['attempt']}" + (f" at {restart['at']}" if restart["at"] else "")


def _describe(pipeline: str, paths: list[str]) -> Outcome:
    from conduit_dagster.cli.description import described
    from conduit_dagster.cli.description_text import show_description
    from conduit_dagster.cli.store import existing_store

    catalogue = _open(paths)
    parsed = next((one for one in catalogue.loaded.pipelines if one.config.id == pipeline), None)
    if parsed is None:
        raise _unknown(pipeline, catalogue)
    facts = described(catalogue, parsed, existing_store(catalogue.project))
    summary = f"{pipeline}: {facts['status']['now'] or 'never ran'}"
    return Outcome(summary, facts, show=lambda console: show_description(console, facts))


def _unknown(pipeline: str, catalogue: Catalogue) -> Exception:
    from conduit_dagster.config.findings import did_you_mean

    ids = [one.config.id for one in catalogue.loaded.pipelines]
    fix = (
        did_you_mean(pipeline, ids)
        or f"where its file lies elsewhere: conduit-dagster pipelines describe {pipeline} PATH"
    )
    return usage_error(f"there is no pipeline {pipeline} in this project", "unknown_pipeline", fix)
