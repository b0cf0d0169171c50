"""``spark start``, ``stop`` and ``status``: the local Spark Connect server that the project's runs share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from conduit_dagster.cli.verb import FAILED, Outcome, count, current_project, verb
from conduit_dagster.readable import when
from conduit_dagster.recovery.errors import TransientError

if TYPE_CHECKING:
    from rich.console import Console


app = typer.Typer(no_args_is_help=True, help="The Spark server that the project's runs share.")


@app.command("start")
@verb("spark start")
def start() -> Outcome:
    """Start the server, unless it runs. A run starts it automatically; it ends after spark.idle-timeout without one."""
    from conduit_dagster.cli.terminal import console
    from conduit_dagster.cli.verb_session import spark_settings
    from conduit_dagster.spark.java import require_java
    from conduit_dagster.spark.server import start_server

    project = current_project()
    require_java()
    with console().status("starting Spark"):
        server, fresh = start_server(spark_settings(project))
    summary = f"Spark {server.spark} {'started' if fresh else 'runs already'} at {server.url}, pid {server.pid}"
    return Outcome(summary, {"started": fresh, "url": server.url, "pid": server.pid, "since": when(server.since * 1e9)})


@app.command("stop")
@verb("spark stop")
def stop() -> Outcome:
    """Stop the server, by force after ten seconds. Pipelines that run on it fail and recover on a new one."""
    from conduit_dagster.spark.server import stop_server

    stopped = stop_server(current_project().home)
    if stopped is None:
        return Outcome("no shared Spark server is running", {"stopped": False})
    how = " by force" if stopped["forced"] else ""
    cut_off = stopped["sessions"]
    lost = f"; {count(len(cut_off), 'session')} lost it" if cut_off else ""
    return Outcome(f"stopped{how} the server, pid {stopped['pid']}{lost}", {"stopped": True, **stopped})


@app.command("status")
@verb("spark status")
def status() -> Outcome:
    """Show whether the server runs and answers, its address, start, memory and users. Starts nothing."""
    from conduit_dagster.spark.server import server_status

    facts = server_status(current_project().home)
    if not facts["running"]:
        return Outcome("no shared Spark server is running; a run starts it, or conduit-dagster spark start", facts)
    told = {**facts, "since": when(facts["since"] * 1e9), "sessions": [_session(one) for one in facts["sessions"]]}
    if facts["answers"]:
        return Outcome("", told, show=lambda console: _show(console, told))
    error = TransientError(
        f"the shared Spark server at {facts['url']} (pid {facts['pid']}) does not answer",
        code="spark.unreachable",
        place=facts["log"],
        fix="wait if it was started a moment ago; else conduit-dagster spark stop, and the next run starts another",
    )
    return Outcome(error.message, told, FAILED, error, lambda console: _show(console, told))


def _session(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "since": None if one["since"] is None else when(one["since"] * 1e9)}


def _show(console: Console, facts: dict[str, Any]) -> None:
    from conduit_dagster.cli.terminal import print_table, styled

    state = styled("ok", "answers") if facts["answers"] else styled("fail", "does not answer")
    rows = [
        ("state", state),
        ("url", facts["url"]),
        ("pid", facts["pid"]),
        ("since", facts["since"]),
        ("memory", f"{facts['memory_bytes'] / 1e6:,.0f} MB, with its workers"),
        ("version", f"Spark {facts['version']}, {facts['python']}"),
        ("log", facts["log"]),
    ]
    print_table(console, ("", "server"), rows)
    if facts["sessions"]:
        console.print()
        cells = [(one["pid"], one["name"], one["since"] or "") for one in facts["sessions"]]
        print_table(console, ("session of", "name", "since"), cells)
