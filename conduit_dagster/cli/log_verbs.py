"""``log current``, ``oldest``, ``show``, ``compact``, ``export`` and ``import``: the commit log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conduit_dagster.cli.operate import (
    LARGEST,
    DryRun,
    Facts,
    Files,
    Pipeline,
    Source,
    operated,
    parsed_position,
    subject,
)
from conduit_dagster.cli.verb import AcceptNewState, Outcome, verb
from conduit_dagster.engine.operate.summaries import compact_summary, entry_count, on_one_line

if TYPE_CHECKING:
    import sqlalchemy as sa
    from rich.console import Console

    from conduit_dagster.commit_log.binary import EntryData
    from conduit_dagster.engine.operate.pipeline_lock import PipelineLock
    from conduit_dagster.engine.operate.subject import Subject

app = typer.Typer(no_args_is_help=True, help="The commit log.")
First = Annotated[int | None, typer.Option("--from", metavar="N", min=0, max=LARGEST, help="The first offset.")]
Last = Annotated[int | None, typer.Option("--to", metavar="N", min=0, max=LARGEST, help="The last offset, included.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=LARGEST, help="At most this many entries.")]
File = Annotated[str, typer.Argument(metavar="FILE", help="The exported file.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
At = Annotated[
    str | None,
    typer.Option(
        "--position", metavar="JSON", help="Where the source continues after the entries; by default where it stands."
    ),
]
Contents = Annotated[
    str,
    typer.Option(
        "--as",
        metavar="opencdc|raw",
        help="What the entries hold: records as exported, or any bytes (raw).",
    ),
]
Reveal = Annotated[bool, typer.Option("--reveal", help="Also fields that the pipeline's file redacts.")]
_WIDTH = 80


@app.command("current")
@verb("log current")
def current(pipeline: Pipeline, files: Files = None) -> Outcome:
    """Show the newest entry and the size of each source's log. Works while the pipeline runs."""
    return _ends(subject(pipeline, files), newest=True)


@app.command("oldest")
@verb("log oldest")
def oldest(pipeline: Pipeline, files: Files = None) -> Outcome:
    """Show the oldest entry and the size of each source's log. Works while the pipeline runs."""
    return _ends(subject(pipeline, files), newest=False)


@app.command("show")
@verb("log show")
def show(
    pipeline: Pipeline,
    first: First = None,
    last: Last = None,
    source: Source = None,
    limit: Limit = 100,
    reveal: Reveal = False,
    files: Files = None,
) -> Outcome:
    """Show entries from one offset to another; without --from, unhandled ones. --json prints whole records."""
    from conduit_dagster.engine.operate.logs import shown

    one = subject(pipeline, files)
    redact = [] if reveal else one.redact
    facts = shown(one.known(), one.id, one.bound, one.options.log_url, first, last, source, limit, redact)
    entries = facts["entries"]
    more = f"; there are more: --limit, or --from {entries[-1]['offset'] + 1}" if facts["more"] else ""
    summary = f"{entry_count(len(entries))} of {facts['source']}, from the {facts['from']}{more}"
    return Outcome(summary, {"pipeline": one.id, **facts}, show=lambda console: _print_entries(console, entries))


@app.command("compact")
@verb("log compact")
def compact(pipeline: Pipeline, source: Source = None, dry_run: DryRun = False, files: Files = None) -> Outcome:
    """Remove entries that every consumer has handled from closed segments. Each namespace keeps its last entry."""
    from conduit_dagster.engine.operate.logs import compact as apply

    one = subject(pipeline, files)

    def work(lock: PipelineLock, database: sa.Engine) -> Facts:
        return {"pipeline": one.id, "logs": apply(lock, database, source, dry_run)}

    return operated(one, work, compact_summary, dry_run)


@app.command("export")
@verb("log export")
def export(
    pipeline: Pipeline,
    file: File,
    source: Source = None,
    first: First = None,
    last: Last = None,
    force: Force = False,
    files: Files = None,
) -> Outcome:
    """Write entries to a file, in the binary layout of Transporter's commit log."""
    from conduit_dagster.engine.operate.log_transfer import export_log

    one = subject(pipeline, files)
    path = Path(file)
    facts = export_log(one.known(), one.id, one.options.log_url, path, source, first, last, force)
    where = f"; the source was logged up to {on_one_line(facts['source_position'])}"
    return Outcome(
        f"{entry_count(facts['entries'])} of {facts['source']} are in {path}{where}", {"pipeline": one.id, **facts}
    )


@app.command("import")
@verb("log import")
def import_(
    pipeline: Pipeline,
    file: File,
    source: Source = None,
    position: At = None,
    contents: Contents = "opencdc",
    dry_run: DryRun = False,
    accept_new: AcceptNewState = False,
    files: Files = None,
) -> Outcome:
    """Append the entries of a file, with their offsets, to a log. The next run delivers them."""
    from conduit_dagster.engine.operate.log_transfer import import_log, preview

    one, data = subject(pipeline, files, accept_new), _data(contents)
    at = None if position is None else parsed_position(position, "--position")
    if dry_run and not one.is_known:
        facts = {"pipeline": one.id, **preview(one.sound(), Path(file), source, data, at), "dry_run": dry_run}
        return Outcome(_imported(facts), facts)

    def work(lock: PipelineLock, _: object) -> Facts:
        return {"pipeline": one.id, **import_log(lock, Path(file), source, at, data, dry_run)}

    return operated(one, work, _imported, dry_run, fresh=True)


# -- reading ------------------------------------------------------------------------------------------------------


def _ends(one: Subject, newest: bool) -> Outcome:
    from conduit_dagster.engine.operate.logs import log_facts, open_ranges
    from conduit_dagster.engine.operate.operator_errors import never_ran
    from conduit_dagster.engine.operate.source_positions import stored

    store = one.known()
    rows = log_facts(store, one.id, one.options.log_url, newest)
    if rows:
        result: dict[str, Any] = {"pipeline": one.id, "log": "records", "logs": rows}
        return Outcome("", result, show=lambda console: _print_ends(console, rows))
    state = stored(store, one.id)
    if state is None:
        raise never_ran(one.id)
    ranges = open_ranges(state)
    result = {"pipeline": one.id, "log": "positions", "logs": [], "open": ranges}
    summary = (
        f"{one.id} keeps no log of records: the ranges of its steps are its log, and the records are read again from"
        f" the source; {_ranges(ranges)}"
    )
    return Outcome(summary, result)


def _ranges(ranges: list[dict[str, Any]]) -> str:
    if not ranges:
        return "no step is open"
    spans = [
        f"{row['source']} from offset {row['first_offset']}"
        + ("" if row["records"] is None else f", {row['records']:,} records")
        for row in ranges
    ]
    return f"step {ranges[0]['step']} is open: {', '.join(spans)}"


def _print_ends(console: Console, rows: list[dict[str, Any]]) -> None:
    from conduit_dagster.cli.progress import amount
    from conduit_dagster.cli.terminal import print_table

    cells = [
        (
            row["source"],
            *((entry["offset"], entry["time"], entry["namespace"], entry["segment"]) if entry else ("",) * 4),
            f"{row['entries']:,}",
            row["segments"],
            amount(row["bytes"], "bytes"),
            ", ".join(f"{reader['id']} {reader['offset']}" for reader in row["readers"]),
        )
        for row in rows
        for entry in [row["entry"]]
    ]
    columns = ("source", "offset", "time", "namespace", "segment", "entries", "segments", "size", "read by")
    print_table(console, columns, cells)


def _print_entries(console: Console, entries: list[dict[str, Any]]) -> None:
    from conduit_dagster.cli.terminal import print_table

    names = ("offset", "time", "mode", "operation", "namespace")
    if entries:
        cells = [(*(entry[name] for name in names), _record(console, entry)) for entry in entries]
        print_table(console, (*names, "record"), cells)


def _record(console: Console, entry: dict[str, Any]) -> str:
    from conduit_dagster.readable import readable_payload

    payload = readable_payload(entry["record"])
    text = json.dumps(payload["after"] or payload, ensure_ascii=False)
    text = f"nacked by {entry['nack']['node']}: {text}" if entry["nack"] else text
    return text if not console.is_terminal or len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


# -- changing -----------------------------------------------------------------------------------------------------


def _data(contents: str) -> EntryData:
    from conduit_dagster.engine.operate.operator_errors import refused

    if contents == "raw" or contents == "opencdc":
        return contents
    raise refused("usage.contents", f"--as {contents} is not known", "--as raw for any bytes, else --as opencdc")


def _imported(facts: Facts) -> str:
    verb = "would be" if facts["dry_run"] else "are"
    end = "" if facts["dry_run"] else "; conduit-dagster run delivers them"
    many = f"{entry_count(facts['entries'])} ({facts['first']} to {facts['last']})"
    return f"{facts['pipeline']}: {many} {verb} in the log of {facts['source']}{end}"
