"""``pipelines history``: what happened to a pipeline, the newest last. Starts no Spark."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conduit_dagster.cli.operate import Files, Pipeline, subject
from conduit_dagster.cli.outcome import Outcome
from conduit_dagster.cli.verb import AsJson, perform

if TYPE_CHECKING:
    from rich.console import Console

    from conduit_dagster.state.history import Event

Since = Annotated[
    str | None, typer.Option("--since", metavar="AGE|TIME", help="Only newer ones: 2h, 1d12h, or 2026-08-02T10:00.")
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="The newest N.")]


def history(
    pipeline: Pipeline, since: Since = None, limit: Limit = 100, files: Files = None, as_json: AsJson = False
) -> None:
    """What happened to a pipeline, the newest last; also while it runs, and after its file is gone."""
    perform("pipelines history", as_json, lambda: _history(pipeline, since, limit, files))


def _history(pipeline: str, since: str | None, limit: int, files: list[str] | None) -> Outcome:
    from conduit_dagster.cli.terminal import count
    from conduit_dagster.engine.operate.moments import moment

    since_ns = 0 if since is None else moment(since, time.time_ns(), "--since")
    # one more than is shown, to know whether there are more
    found = _read(pipeline, files, limit + 1, since_ns)
    shown = found[-limit:]
    facts = {"pipeline": pipeline, "events": [_facts(one) for one in shown], "more": len(found) > limit}
    older = f"; older ones with --limit {2 * limit}" if facts["more"] else ""
    none = f"{pipeline} never ran" if since is None else f"nothing happened to {pipeline} since {since}"
    summary = count(len(shown), "event") + older if shown else none
    return Outcome(summary, facts, show=lambda console: _show(console, shown))


def _read(pipeline: str, files: list[str] | None, limit: int, since_ns: int) -> list[Event]:
    from conduit_dagster.state.history import events

    store = subject(pipeline, files).store
    return [] if store is None else events(store, pipeline, limit, since_ns)


def _facts(one: Event) -> dict[str, Any]:
    from conduit_dagster.cli.description import when
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
    from conduit_dagster.state.history import said

    rows = [
        (_local(one.at_ns), styled(_COLOURS.get(one.event, one.event), said(one.event, one.detail))) for one in shown
    ]
    if rows:
        print_table(console, ("time", "event"), rows)


_COLOURS = {"failed": "error", "waiting": "recovering", "restarted": "recovering", "recovered": "ok", "started": "ok"}


def _local(ns: int) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(ns / 1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S")
