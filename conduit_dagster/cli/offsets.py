"""``offsets list``, ``show``, ``mark``, ``step``, ``drop``: offsets of consumers and readers, ways to unblock them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conduit_dagster.cli.operate import LARGEST, DryRun, Facts, Files, Pipeline, Source, operated, subject, who
from conduit_dagster.cli.verb import Outcome, count, verb

if TYPE_CHECKING:
    from rich.console import Console

    from conduit_dagster.engine.operate.pipeline_lock import PipelineLock

app = typer.Typer(no_args_is_help=True, help="Consumers' offsets.")
Consumer = Annotated[str, typer.Argument(metavar="CONSUMER", help="The destination's id.")]
Only = Annotated[
    str | None, typer.Argument(metavar="[CONSUMER]", help="The destination; needed where there are several.")
]
Offset = Annotated[
    int | None,
    typer.Argument(metavar="[OFFSET]", min=0, max=LARGEST, help="Up to this record, included; or give --offset."),
]
Offsets = Annotated[
    list[str] | None,
    typer.Option("--offset", metavar="N or N-M", help="Only this record, or these; repeatable, in any order."),
]
Reader = Annotated[str, typer.Argument(metavar="READER", help="PIPELINE:CONNECTOR, as offsets list shows it.")]
Force = Annotated[bool, typer.Option("--force", help="Also backwards: what lies between is sent again.")]


@app.command("list")
@verb("offsets list")
def list_(pipeline: Pipeline, files: Files = None) -> Outcome:
    """Show every consumer's offset, lag and open delivery. Works while the pipeline runs."""
    from conduit_dagster.engine.operate.consumer_lag import consumer_facts

    one = subject(pipeline, files)
    base = one.options.log_url
    rows = consumer_facts(one.store, pipeline, one.bound, base) if one.store is not None else []
    summary = "" if rows else f"{pipeline} never ran"
    return Outcome(summary, {"pipeline": pipeline, "consumers": rows}, show=lambda console: _print_list(console, rows))


@app.command("show")
@verb("offsets show")
def show(pipeline: Pipeline, consumer: Only = None, files: Files = None) -> Outcome:
    """Show one consumer's offsets by namespace. Works while the pipeline runs."""
    from conduit_dagster.engine.operate.consumer_lag import namespace_facts, readers
    from conduit_dagster.engine.operate.operator_errors import chosen, never_ran
    from conduit_dagster.state.overview import consumer_rows

    store = subject(pipeline, files).known()
    names = [row["id"] for row in consumer_rows(store, pipeline)]
    known = [*names, *(one.name for one in readers(store, pipeline))]
    if not known:
        raise never_ran(pipeline)
    name = chosen("consumer", consumer, names if consumer is None else known, pipeline)
    rows = namespace_facts(store, pipeline, name)
    result = {"pipeline": pipeline, "consumer": name, "offsets": rows}
    return Outcome("" if rows else f"{name} has handled nothing yet", result, show=lambda to: _print_show(to, rows))


@app.command("mark")
@verb("offsets mark")
def mark(
    pipeline: Pipeline,
    consumer: Consumer,
    offset: Offset = None,
    offsets: Offsets = None,
    source: Source = None,
    force: Force = False,
    dry_run: DryRun = False,
    files: Files = None,
) -> Outcome:
    """Count the open step's records up to OFFSET, or those of --offset, as handled, unsent. They are lost there."""
    from conduit_dagster.engine.operate.mark import mark as apply
    from conduit_dagster.engine.operate.mark_records import mark_records

    wanted = _ranges(offset, offsets, force) if offsets else _one(offset)

    def work(lock: PipelineLock, _: object) -> Facts:
        if isinstance(wanted, int):
            return apply(lock, consumer, wanted, source, force, dry_run)
        return mark_records(lock, consumer, wanted, source, dry_run)

    return operated(subject(pipeline, files), work, _marked, dry_run)


@app.command("step")
@verb("offsets step")
def step(pipeline: Pipeline, consumer: Only = None, dry_run: DryRun = False, files: Files = None) -> Outcome:
    """Send exactly one record, the next one of the open step, and move the offset past it."""
    from conduit_dagster.engine.operate.one_record import step as apply

    return operated(subject(pipeline, files), lambda lock, _: apply(lock, consumer, dry_run), _stepped, dry_run)


@app.command("drop")
@verb("offsets drop")
def drop(pipeline: Pipeline, reader: Reader, dry_run: DryRun = False, files: Files = None) -> Outcome:
    """Stop keeping the log for READER, another pipeline that reads it. Its unread entries may then be compacted."""
    from conduit_dagster.engine.operate.consumer_lag import drop_reader

    one = subject(pipeline, files)
    facts = drop_reader(one.known(), pipeline, reader, who(), one.options.lease_seconds, dry_run)
    return Outcome(_dropped(facts, dry_run), {**facts, "dry_run": dry_run})


def _print_list(console: Console, rows: list[dict[str, Any]]) -> None:
    from conduit_dagster.cli.terminal import print_table

    cells = [
        (
            row["id"],
            source["id"],
            "" if source["offset"] is None else source["offset"],
            source["behind"],
            _open(row["open"]) if number == 0 else "",
            (row["error"] or {}).get("code", "") if number == 0 else "",
        )
        for row in rows
        for number, source in enumerate(row["sources"])
    ]
    if cells:
        print_table(console, ("consumer", "source", "offset", "behind", "open delivery", "stands at"), cells)


def _open(delivery: dict[str, Any] | None) -> str:
    if delivery is None:
        return ""
    following = delivery["next"]
    ahead = f", next {following['offset']}" if following else ""
    kind = "one by one" if delivery["state"] == "split" else "in bulk"
    marked = f", {delivery['marked']:,} marked" if delivery["marked"] else ""
    return f"step {delivery['step']}, {kind}: {delivery['handled']:,} of {delivery['records']:,}{marked}{ahead}"


def _print_show(console: Console, rows: list[dict[str, Any]]) -> None:
    from conduit_dagster.cli.terminal import print_table

    if rows:
        cells = [(row["source"], row["namespace"] or "(none)", row["offset"]) for row in rows]
        print_table(console, ("source", "namespace", "offset"), cells)


def _one(offset: int | None) -> int:
    from conduit_dagster.engine.operate.operator_errors import refused

    if offset is None:
        raise refused("usage.offset", "no record is named", "give OFFSET to mark up to it, or --offset for single ones")
    return offset


def _ranges(upto: int | None, offsets: list[str], force: bool) -> list[range]:
    from conduit_dagster.engine.operate.operator_errors import refused

    if upto is not None or force:
        other = "OFFSET (up to it)" if upto is not None else "--force (backwards)"
        raise refused("usage.offset", f"--offset marks single records and does not go with {other}", "leave one out")
    found: list[range] = []
    for text in offsets:
        match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", text.strip())
        wanted = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not wanted:
            raise refused("usage.offset", f"{text!r} names no record", "--offset takes 12, or 9-11 for 9, 10 and 11")
        found.append(wanted)
    return found


def _marked(facts: Facts) -> str:
    from conduit_dagster.engine.operate.mark_records import spans

    who, offsets, dry_run = f"{facts['pipeline']}: {facts['consumer']}", facts["offsets"], facts["dry_run"]
    if facts["did"] == "held":
        return f"{who} has all of the open step already; it is delivered"
    if not offsets:
        return f"{who} has handled these records already; nothing changed"
    if facts["did"] == "given up":
        many = count(facts["records"], "dead letter")
        return f"{who}: the queue {'would get' if dry_run else 'gets'} no copy of {many}{_after(facts)}"
    many = f"{count(facts['records'], 'record')} ({spans(offsets)})"
    if facts["did"] == "set back":
        return f"{who} {'would get' if dry_run else 'gets'} {many} again"
    there = f", of them {facts['delivered']} turned out to be delivered" if facts["delivered"] else ""
    verb = "would be" if dry_run else "is" if facts["records"] == 1 else "are"
    return f"{who}: {many} {verb} marked as handled{there}{_after(facts)}"


def _after(facts: dict[str, Any]) -> str:
    if facts["step_done"]:
        return f"; step {facts['step']} is done"
    if facts["next"] is None:
        return f"; its delivery {'would be' if facts['dry_run'] else 'is'} done"
    return f"; the next one is {facts['next']}"


def _stepped(facts: Facts) -> str:
    who = f"{facts['pipeline']}: {facts['consumer'] or 'the consumer'}"
    if facts["did"] == "held":
        return f"{who} has all of the open step already; it is delivered"
    record = f"offset {facts['offset']} of {facts['source']}"
    said = {"would send": "would get", "sent": "got", "refused": "refused"}[facts["did"]]
    letter = ", which is a dead letter now" if facts["did"] == "refused" else ""
    done = f"; {facts['handled']:,} of {facts['records']:,} are handled"
    end = f"; step {facts['step']} is done" if facts["step_done"] else ""
    return f"{who} {said} {record}{letter}{done}{end}"


def _dropped(facts: Facts, dry_run: bool) -> str:
    log, unread = f"the log of {facts['pipeline']}:{facts['source']}", count(facts["unread"], "record")
    waits = "would wait" if dry_run else "waits"
    return (
        f"{log} {waits} for {facts['reader']} no more: {unread} that it has not read may be compacted;"
        " its place is kept for when it runs again"
    )
