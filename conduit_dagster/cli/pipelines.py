"""``pipelines list``, ``describe``, ``history``, ``start``, ``stop``, ``delete``, ``reload``. They start no Spark."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conduit_dagster.cli.operate import LARGEST, DryRun, Files, Pipeline, subject, who
from conduit_dagster.cli.verb import (
    FAILED,
    AcceptNewState,
    Outcome,
    Paths,
    count,
    current_catalogue,
    current_project,
    usage_error,
    verb,
)
from conduit_dagster.engine.operate.summaries import delete_summary, start_summary, stop_summary

if TYPE_CHECKING:
    from rich.console import Console

    from conduit_dagster.engine.bound_pipeline import Catalogue
    from conduit_dagster.state.history import Event

app = typer.Typer(no_args_is_help=True, help="The project's pipelines.")
Id = Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline's id.")]


AskLag = Annotated[
    bool | None,
    typer.Option(
        "--lag/--no-lag",
        help="Ask every source how much waits, however long that takes; or ask none.",
        show_default="until none has answered for 0.3 s",
    ),
]


@app.command("list")
@verb("pipelines list")
def list_(paths: Paths = None, ask_lag: AskLag = None) -> Outcome:
    """List all pipelines: status, lag of their sources, number of findings. Without PATH: the project's."""
    from conduit_dagster.cli.pipeline_list import list_pipelines

    return list_pipelines(current_catalogue(paths or []), ask_lag, paths or [])


@app.command("describe")
@verb("pipelines describe")
def describe(pipeline: Id, paths: Paths = None) -> Outcome:
    """Describe one pipeline: its parts, positions and errors. PATH: its file, if it is elsewhere."""
    from conduit_dagster.cli.description import described, described_without_file
    from conduit_dagster.cli.description_text import show_description
    from conduit_dagster.state.claim import existing_store
    from conduit_dagster.state.overview import stored_names

    catalogue = current_catalogue(paths or [])
    parsed = next((one for one in catalogue.loaded.pipelines if one.config.id == pipeline), None)
    store = existing_store(catalogue.project)
    stored = [] if store is None else stored_names(store)
    if parsed is not None:
        facts = described(catalogue, parsed, store)
    elif store is not None and pipeline in stored:
        facts = described_without_file(pipeline, store, catalogue)
        if paths and not facts["findings"]:
            raise _elsewhere(pipeline, paths)
    else:
        raise _unknown(pipeline, catalogue, stored)
    summary = f"{pipeline}: {facts['status']['now'] or 'never ran'}"
    return Outcome(summary, facts, show=lambda console: show_description(console, facts))


def _unknown(pipeline: str, catalogue: Catalogue, stored: list[str]) -> Exception:
    from conduit_dagster.config.findings import did_you_mean

    ids = [*(one.config.id for one in catalogue.loaded.pipelines), *stored]
    fix = (
        did_you_mean(pipeline, ids)
        or f"where its file lies elsewhere: conduit-dagster pipelines describe {pipeline} PATH"
    )
    return usage_error(f"there is no pipeline {pipeline} in this project", "unknown_pipeline", fix)


def _elsewhere(pipeline: str, paths: list[str]) -> Exception:
    fix = f"name the file that has it, or none: conduit-dagster pipelines describe {pipeline}"
    return usage_error(f"there is no pipeline {pipeline} in {', '.join(paths)}", "unknown_pipeline", fix)


Force = Annotated[bool, typer.Option("--force", help="Cancel the step at hand; the pipeline is then degraded.")]


@verb("pipelines start")
def start(pipeline: Pipeline, accept_new: AcceptNewState = False, files: Files = None) -> Outcome:
    """Start a pipeline that was stopped, is degraded, or waits for its restart."""
    asked = subject(pipeline, files, accept_new).start(who())
    return Outcome(start_summary(pipeline, asked), {"asked": asked})


@verb("pipelines stop")
def stop(pipeline: Pipeline, force: Force = False, files: Files = None) -> Outcome:
    """Stop a pipeline, wherever it runs, and wait for its end. A pending restart is cancelled."""
    one = subject(pipeline, files)
    stopped = one.stop(who(), force)
    return Outcome(stop_summary(pipeline, stopped, one.status), {"stopped": stopped, "status": one.status})


Lose = Annotated[bool, typer.Option("--force", help="Delete it even if something that is not delivered is lost.")]


@verb("pipelines delete")
def delete(pipeline: Pipeline, force: Lose = False, dry_run: DryRun = False, files: Files = None) -> Outcome:
    """Delete all that is kept of a stopped pipeline: positions, log, dead letters, and its sources' slots.

    Its history stays. Remove its file as well, or the next start reads its sources from their beginning.
    """
    # the engine takes a tenth of a second to import, and most verbs only read
    from conduit_dagster.engine.operate.delete import delete as delete_pipeline

    facts = delete_pipeline(subject(pipeline, files), who(), force, dry_run)
    return Outcome(delete_summary(facts), facts)


Since = Annotated[
    str | None,
    typer.Option("--since", metavar="AGE|TIME", help="Only newer ones: 2h, 1d12h, or 2026-08-02T10:00Z."),
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=LARGEST, help="The newest N.")]


@verb("pipelines history")
def history(pipeline: Pipeline, since: Since = None, limit: Limit = 100, files: Files = None) -> Outcome:
    """Show the events of a pipeline, the newest last. Works while it runs, and once it or its file is deleted."""
    from conduit_dagster.engine.operate.source_positions import moment
    from conduit_dagster.engine.operate.subject import history_store
    from conduit_dagster.state.history import events

    since_ns = 0 if since is None else moment(since, time.time_ns(), "--since")
    store = history_store(current_project(), pipeline, files or ())
    # one more than is shown, to know whether further ones exist
    found = [] if store is None else events(store, pipeline, limit + 1, since_ns)
    shown = found[-limit:]
    facts = {"pipeline": pipeline, "events": [_facts(one) for one in shown], "more": len(found) > limit}
    older = f"; older ones with --limit {2 * limit}" if facts["more"] else ""
    none = f"{pipeline} never ran" if since is None else f"nothing happened to {pipeline} since {since}"
    summary = count(len(shown), "event") + older if shown else none
    return Outcome(summary, facts, show=lambda console: _show(console, shown))


def _facts(one: Event) -> dict[str, Any]:
    from conduit_dagster.readable import when
    from conduit_dagster.state.history import said

    return {
        "at": when(one.at_ns),
        "at_ns": one.at_ns,
        "event": one.event,
        "says": said(one.event, one.detail),
        "detail": one.detail,
    }


def _show(console: Console, shown: list[Event]) -> None:
    from conduit_dagster.cli.terminal import print_table, styled
    from conduit_dagster.readable import when
    from conduit_dagster.state.history import said

    rows = [(when(one.at_ns), styled(_COLOURS.get(one.event, one.event), said(one.event, one.detail))) for one in shown]
    if rows:
        print_table(console, ("time", "event"), rows)


_COLOURS = {"failed": "error", "waiting": "recovering", "restarted": "recovering", "recovered": "ok", "started": "ok"}


Url = Annotated[
    str,
    typer.Option("--url", metavar="URL", envvar="CONDUIT_DAGSTER_URL", help="Where Dagster's web server listens."),
]
_QUERY = """
mutation {
  reloadWorkspace {
    __typename
    ... on Workspace {
      locationEntries {
        name
        locationOrLoadError { __typename ... on PythonError { message } }
      }
    }
    ... on UnauthorizedError { message }
    ... on PythonError { message }
  }
}
"""
_SECONDS = 120.0
_HERE = ("localhost", "127.0.0.1", "::1")


@verb("pipelines reload")
def reload(url: Url = "http://127.0.0.1:3000") -> Outcome:
    """Make a running Dagster reload the project. Required after adding or removing pipelines or connectors."""
    from conduit_dagster.recovery.errors import FatalError
    from conduit_dagster.secret_values import masked

    answer, url = _asked(url), masked(url)
    if answer["__typename"] != "Workspace":
        raise FatalError(answer["message"], code="dagster.reload_refused", place=url, fix="see Dagster's own log")
    locations = [_location(entry) for entry in answer["locationEntries"]]
    facts = {"locations": locations}
    broken = [one for one in locations if one["error"] is not None]
    if not broken:
        return Outcome(f"{count(len(locations), 'code location')} loaded again", facts)
    message = "; ".join(f"{one['name']}: {one['error']}" for one in broken)
    error = FatalError(message, code="dagster.load_failed", place=url, fix="conduit-dagster validate shows mistakes")
    return Outcome(f"not loaded: {message}", facts, FAILED, error)


def _location(entry: dict[str, Any]) -> dict[str, Any]:
    loaded = entry["locationOrLoadError"] or {}
    return {"name": entry["name"], "error": loaded.get("message")}


def _asked(url: str) -> dict[str, Any]:
    import json
    from http.client import HTTPException
    from urllib.parse import urlsplit
    from urllib.request import ProxyHandler, Request, build_opener

    from conduit_dagster.recovery.errors import TransientError
    from conduit_dagster.secret_values import masked

    body = json.dumps({"query": _QUERY}).encode()
    try:
        request = Request(f"{url.rstrip('/')}/graphql", body, {"Content-Type": "application/json"}, method="POST")
        # no proxy reaches this machine's own address
        own = [ProxyHandler({})] if urlsplit(url).hostname in _HERE else []
        with build_opener(*own).open(request, timeout=_SECONDS) as answer:
            return json.load(answer)["data"]["reloadWorkspace"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise TransientError(
            masked(f"Dagster does not answer at {url}: {error}"),
            code="dagster.unreachable",
            fix="start it (dagster dev -m conduit_dagster.definitions), or name its web server: --url http://HOST:PORT",
        ) from error


app.command("start")(start)
app.command("stop")(stop)
app.command("delete")(delete)
app.command("history")(history)
app.command("reload")(reload)
