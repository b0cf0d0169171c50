"""``positions show`` and ``rewind``: current position of each source, and where to continue from."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conduit_dagster.cli.operate import (
    LARGEST,
    DryRun,
    Facts,
    Files,
    Pipeline,
    operated,
    parsed_position,
    subject,
    subjects,
)
from conduit_dagster.cli.verb import AcceptNewState, Outcome, verb
from conduit_dagster.engine.operate.summaries import on_one_line, rewind_summary, send_again_summary

if TYPE_CHECKING:
    import sqlalchemy as sa
    from rich.console import Console

    from conduit_dagster.engine.operate.pipeline_lock import PipelineLock
    from conduit_dagster.engine.operate.rewind import RewindTarget

app = typer.Typer(no_args_is_help=True, help="Where sources stand.")
Every = Annotated[str | None, typer.Argument(metavar="[PIPELINE]", help="The pipeline's id; without it, all.")]
Name = Annotated[str | None, typer.Argument(metavar="[SOURCE]", help="The source; needed where there are several.")]
ToStart = Annotated[bool, typer.Option("--to-start", help="To the source's beginning, or that of its log.")]
To = Annotated[str | None, typer.Option("--to", metavar="JSON", help="To a position, as positions show prints it.")]
ToOffset = Annotated[
    int | None,
    typer.Option("--to-offset", metavar="N", min=0, max=LARGEST, help="The record with this offset comes next."),
]
ToTime = Annotated[
    str | None,
    typer.Option(
        "--to-time",
        metavar="AGE|TIME",
        help="What was logged since: 2h, 1d12h or 2026-08-02T10:00Z; with a log only.",
    ),
]
Into = Annotated[
    str | None,
    typer.Option("--into", metavar="DESTINATION", help="Only this destination is sent the records again; with a log."),
]
UntilOffset = Annotated[
    int | None,
    typer.Option(
        "--until-offset", metavar="N", min=0, max=LARGEST, help="With --into: the first record not sent again."
    ),
]
UntilTime = Annotated[
    str | None, typer.Option("--until-time", metavar="AGE|TIME", help="With --into: only what was logged before.")
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Also forward: what lies between is never delivered. With --into: give up a range."),
]


@app.command("show")
@verb("positions show")
def show(pipeline: Every = None, files: Files = None) -> Outcome:
    """Show each source's position, offset and lag, and its collections' progress. Works while the pipeline runs."""
    from conduit_dagster.engine.operate.source_positions import position_facts

    rows: list[dict[str, Any]] = []
    for one in [subject(pipeline, files)] if pipeline else subjects(files):
        found = position_facts(one.store, one.id, one.bound, one.options.log_url) if one.store is not None else []
        rows.append({"id": one.id, "sources": found})
    missing = [row["id"] for row in rows if not row["sources"]]
    summary = f"never ran: {', '.join(missing)}" if missing else ""
    return Outcome(summary, {"pipelines": rows}, show=lambda console: _print(console, rows))


@app.command("rewind")
@verb("positions rewind")
def rewind(
    pipeline: Pipeline,
    source: Name = None,
    to_start: ToStart = False,
    to: To = None,
    to_offset: ToOffset = None,
    to_time: ToTime = None,
    into: Into = None,
    until_offset: UntilOffset = None,
    until_time: UntilTime = None,
    force: Force = False,
    dry_run: DryRun = False,
    accept_new: AcceptNewState = False,
    files: Files = None,
) -> Outcome:
    """Continue a source from an earlier position: its records are read and delivered again, under new hashes."""
    from conduit_dagster.engine.operate.rewind import rewind as apply
    from conduit_dagster.engine.operate.send_again import resent, send_again

    one, wish = subject(pipeline, files, accept_new), _wish(to_start, to, to_offset, to_time)
    wanted = resent(into, wish, _ends(until_offset, until_time), "--until-offset N and --until-time TIME")

    def work(lock: PipelineLock, database: sa.Engine) -> Facts:
        if wanted is not None:
            return send_again(lock, database, source, wanted, force, dry_run)
        return apply(lock, database, source, wish, force, dry_run)

    return operated(one, work, rewind_summary if wanted is None else send_again_summary, dry_run)


def _print(console: Console, rows: list[dict[str, Any]]) -> None:
    from conduit_dagster.cli.terminal import print_table

    columns = ("pipeline", "source", "generation", "offset", "lag", "log", "counts", "position")
    cells = [
        (
            row["id"],
            source["id"] + (f" (in {source['joined']})" if source["joined"] else ""),
            source["generation"],
            source["offset"] if isinstance(source["offset"], int) else on_one_line(source["offset"]),
            _lag(source),
            _log(source),
            ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in source["counts"].items()),
            on_one_line(source["position"]),
        )
        for row in rows
        for source in row["sources"]
    ]
    if cells:
        print_table(console, columns, cells)
    collections = [
        (row["id"], source["id"], one["namespace"], one["mode"], "" if one["offset"] is None else one["offset"])
        for row in rows
        for source in row["sources"]
        for one in source["collections"]
        if one["namespace"]
    ]
    if collections:
        console.print()
        print_table(console, ("pipeline", "source", "collection", "mode", "offset"), collections)


def _lag(source: dict[str, Any]) -> str:
    from conduit_dagster.cli.progress import known_lag

    return "" if source["lag"] is None else known_lag(source)


def _log(source: dict[str, Any]) -> str:
    log = source["log"]
    return "" if log is None else f"up to {log['logged_upto']}, handled up to {log['handled_upto']}"


def _ends(offset: int | None, at: str | None) -> list[RewindTarget]:
    from conduit_dagster.engine.operate.rewind import RewindTarget
    from conduit_dagster.engine.operate.source_positions import moment

    return [
        *([RewindTarget("offset", offset)] if offset is not None else []),
        *([RewindTarget("time", moment(at, time.time_ns(), "--until-time"))] if at is not None else []),
    ]


def _wish(to_start: bool, to: str | None, to_offset: int | None, to_time: str | None) -> RewindTarget:
    from conduit_dagster.engine.operate.rewind import RewindTarget, only_target
    from conduit_dagster.engine.operate.source_positions import moment

    wishes = [
        *([RewindTarget("start")] if to_start else []),
        *([RewindTarget("position", parsed_position(to, "--to"))] if to is not None else []),
        *([RewindTarget("offset", to_offset)] if to_offset is not None else []),
        *([RewindTarget("time", moment(to_time, time.time_ns(), "--to-time"))] if to_time is not None else []),
    ]
    return only_target(wishes, "give one of --to-start, --to JSON, --to-offset N, --to-time TIME")
