"""``dlq list``, ``show``, ``export``, ``replay``, ``discard``: the dead letters of a pipeline."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from conduit_dagster.cli.operate import LARGEST, DryRun, Facts, Files, Pipeline, operated, subject, subjects, who
from conduit_dagster.cli.verb import FAILED, Outcome, count, usage_error, verb
from conduit_dagster.engine.operate.filters import Filters
from conduit_dagster.engine.operate.summaries import held_letters, letters_to_send, unusable_letters

if TYPE_CHECKING:
    from rich.console import Console

    from conduit_dagster.engine.dead_letters.search import DeadLetterSearch
    from conduit_dagster.engine.operate.pipeline_lock import PipelineLock
    from conduit_dagster.engine.operate.subject import Subject

Ids = Annotated[list[str] | None, typer.Option("--id", metavar="LETTER", help="Only this letter; may be repeated.")]
Node = Annotated[str | None, typer.Option("--node", metavar="NODE", help="Nacked by this processor or destination.")]
Code = Annotated[str | None, typer.Option("--code", metavar="CODE", help="With this error code.")]
Source = Annotated[str | None, typer.Option("--source", metavar="SOURCE", help="From this source.")]
Namespace = Annotated[str | None, typer.Option("--namespace", metavar="NAME", help="Of this collection.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="AGE|TIME", help="Newer than 2h, 1d12h or 2026-08-02T10:00Z.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="AGE|TIME", help="Older than that.")]
Part = Annotated[str | None, typer.Option("--part", metavar="NAME", help="In this file of the archive.")]
Where = Annotated[
    str, typer.Option("--where", metavar="EXPRESSION", help="Whose failed record matches: after.amount > 100.")
]


def _options(
    ids: Ids = None,
    node: Node = None,
    code: Code = None,
    source: Source = None,
    namespace: Namespace = None,
    since: Since = None,
    until: Until = None,
    part: Part = None,
    where: Where = "",
) -> None:
    """Declare the filter options, named after the fields of :class:`Filters`."""


def with_filters(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to the signature of a command, for Typer to read; the command receives them as ``filters``."""
    options = inspect.signature(_options, eval_str=True).parameters

    @wraps(command)
    def run(**given: Any) -> None:
        filters = Filters(**{name: given.pop(name) for name in options})
        command(filters=filters, **given)

    own = inspect.signature(command, eval_str=True)
    kept = [one for name, one in own.parameters.items() if name != "filters"]
    every = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*options.values(), *kept)]
    run.__signature__ = own.replace(parameters=every)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {one.name: one.annotation for one in every}
    return run


app = typer.Typer(no_args_is_help=True, help="Dead letters.")
Every = Annotated[str | None, typer.Argument(metavar="[PIPELINE]", help="The pipeline's id; without it, all.")]
Id = Annotated[str, typer.Argument(metavar="LETTER", help="The letter, as dlq list prints it: PIPELINE/STEP.NUMBER.")]
State = Annotated[Literal["open", "replayed", "discarded", "all"], typer.Option("--state", help="What became of them.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=LARGEST, help="The newest N.")]
ByReason = Annotated[bool, typer.Option("--by-reason", help="Only count them, by kind.")]
To = Annotated[str, typer.Argument(metavar="FILE", help="One JSON object per line.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
From = Annotated[
    Literal["source", "node"],
    typer.Option("--from", help="The original through the whole pipeline, or the failed record from its node on."),
]
Edits = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=EXPRESSION", help="First set a field, as field.set does.")
]
Reveal = Annotated[bool, typer.Option("--reveal", help="Also fields that the pipeline's file redacts.")]
Note = Annotated[str, typer.Option("--note", metavar="TEXT", help="The reason, for those who look later.")]


@app.command("list")
@with_filters
@verb("dlq list")
def list_(
    filters: Filters,
    pipeline: Every = None,
    state: State = "open",
    limit: Limit = 20,
    by_reason: ByReason = False,
    files: Files = None,
) -> Outcome:
    """Show counts of dead letters by reason, and the newest letters. Works while the pipeline runs."""
    chosen = subjects(files) if pipeline is None else [subject(pipeline, files)]
    shown = 0 if by_reason else limit
    found = [facts for one in chosen if (facts := _of_pipeline(one, filters, state, shown, pipeline is None))]
    many = sum(row["letters"] for one in found for row in one["reasons"])
    words = "" if state == "all" else f"{state} "
    summary = count(many, f"{words}dead letter") if many else f"no {words}dead letters"
    return Outcome(summary, {"pipelines": found}, show=lambda console: _print_list(console, found))


@app.command("show")
@verb("dlq show")
def show(letter: Id, reveal: Reveal = False, files: Files = None) -> Outcome:
    """Show one dead letter: its records, the error, and the current result of each processor for the original."""
    from conduit_dagster.cli.verb_session import session_opener
    from conduit_dagster.engine.dead_letters.search import letter_facts
    from conduit_dagster.engine.operate.letters import parse_id
    from conduit_dagster.spark.sql.query import open_with

    pipeline, key = parse_id(letter)
    if not pipeline:
        raise usage_error(f"{letter} names no pipeline", "letter", "write PIPELINE/STEP.NUMBER, as dlq list prints it")
    one = subject(pipeline, files)
    # the letter is shown with its path through the processors; only a query needs Spark
    open_with(session_opener(one.project))
    facts = letter_facts(_letters(one), one.bound, pipeline, key, [] if reveal else one.redact)
    row = _row(facts.pop("row"))
    return Outcome("", {**row, **facts}, show=lambda console: _print_letter(console, row, facts))


@app.command("export")
@with_filters
@verb("dlq export")
def export(
    filters: Filters, pipeline: Pipeline, file: To, state: State = "open", force: Force = False, files: Files = None
) -> Outcome:
    """Write dead letters to a file: their index entries, failed records and originals."""
    import json

    from conduit_dagster.engine.dead_letters.search import record_json
    from conduit_dagster.engine.operate.export_file import exported
    from conduit_dagster.engine.operate.letters import wanted_of

    one = subject(pipeline, files)
    path = Path(file)
    found = _letters(one).all(wanted_of(filters, one.id, _states(state)), filters.where)
    written = 0
    with exported(path, force, "exporting dead letters") as to:
        for letter in found:
            records = {"failed": record_json(letter.failed()), "original": record_json(letter.original())}
            to.write((json.dumps({**_row(letter.row), **records}, ensure_ascii=False) + "\n").encode())
            written += 1
    facts = {"pipeline": one.id, "file": str(path), "letters": written}
    return Outcome(f"{count(written, 'dead letter')} of {one.id} in {path}", facts)


@app.command("replay")
@with_filters
@verb("dlq replay")
def replay(
    filters: Filters,
    pipeline: Pipeline,
    start: From = "source",
    edits: Edits = None,
    dry_run: DryRun = False,
    files: Files = None,
) -> Outcome:
    """Send open dead letters through the current pipeline, each exactly once.

    A letter that fails again stays open, and the exit code is then 1.
    """
    from conduit_dagster.engine.operate.letters import parse_edit, selection_of
    from conduit_dagster.engine.operate.letters import replay as apply
    from conduit_dagster.engine.operate.operator_errors import failed_again

    one = subject(pipeline, files)
    pairs, selection = [parse_edit(text) for text in edits or []], selection_of(filters, one.id)

    def work(lock: PipelineLock, _: object) -> Facts:
        return apply(lock, selection, start, pairs, dry_run)

    outcome = operated(one, work, _replayed, dry_run)
    if not outcome.result["failed"]:
        return outcome
    return replace(outcome, exit=FAILED, error=failed_again(one.id, outcome.summary))


@app.command("discard")
@with_filters
@verb("dlq discard")
def discard(filters: Filters, pipeline: Pipeline, note: Note, dry_run: DryRun = False, files: Files = None) -> Outcome:
    """Close open dead letters that will not be sent again. Queue and archive keep their records.

    Works also while the pipeline's file has errors, or is gone.
    """
    from conduit_dagster.engine.operate.letters import discard as apply
    from conduit_dagster.engine.operate.letters import selection_of

    one = subject(pipeline, files)
    selection = selection_of(filters, one.id)
    with one.state_locked(who()) as lock:
        facts = {**apply(lock, selection, note, dry_run), "dry_run": dry_run}
    return Outcome(_discarded(facts), facts)


# -- reading ------------------------------------------------------------------------------------------------------


def _of_pipeline(one: Subject, filters: Filters, state: str, limit: int, every: bool) -> Facts:
    from conduit_dagster.engine.operate.letters import wanted_of
    from conduit_dagster.state.dead_letters import newest, reasons

    if one.store is None:
        return {}
    wanted = wanted_of(filters, one.id, _states(state))
    if not filters.where:
        counts = reasons(one.store, one.id, wanted)
        rows = newest(one.store, one.id, wanted, limit) if limit else []
    else:
        counts, rows = _letters(one).counted(wanted, filters.where, limit)
    if every and not counts:
        return {}
    return {"pipeline": one.id, "reasons": counts, "letters": [_row(row) for row in rows]}


def _states(state: str) -> Sequence[str]:
    from conduit_dagster.state.dead_letters import OPEN, STATES

    return {"open": OPEN, "all": STATES}.get(state, (state,))


def _letters(one: Subject) -> DeadLetterSearch:
    from conduit_dagster.engine.dead_letters.archive import Archive, archive_folder
    from conduit_dagster.engine.dead_letters.search import DeadLetterSearch

    return DeadLetterSearch(one.known(), Archive(archive_folder(one.options.log_url, one.id)), one.id)


def _row(row: Any) -> Facts:
    from conduit_dagster.readable import when
    from conduit_dagster.state.dead_letters import letter_id

    names = ("source", "offset", "position", "namespace", "node", "code", "message", "state", "attempt", "note")
    return {
        "id": letter_id(row),
        "at": when(row["at_ns"]),
        **{name: row[name] for name in names},
    }


def _print_list(console: Console, found: list[Facts]) -> None:
    from conduit_dagster.cli.terminal import print_table

    reasons = [(one["pipeline"], row) for one in found for row in one["reasons"]]
    if reasons:
        cells = [(row["letters"], name, row["state"], row["node"], row["code"]) for name, row in reasons]
        print_table(console, ("letters", "pipeline", "state", "node", "code"), cells)
    letters = [row for one in found for row in one["letters"]]
    if letters:
        console.print()
        cells = [
            (row["id"], row["state"], row["at"], f"{row['source']} {row['offset']}", row["node"], row["message"])
            for row in letters
        ]
        print_table(console, ("id", "state", "at", "record", "node", "error"), cells)
        console.print()


def _print_letter(console: Console, row: Facts, facts: Facts) -> None:
    from conduit_dagster.readable import readable_line

    for name in ("id", "state", "at", "source", "offset", "position", "namespace", "attempt", "note"):
        if row[name] not in ("", None):
            console.print(f"{name + ':':<12}{row[name]}")
    for name in ("original", "failed"):
        if facts[name] is not None:
            console.print(f"\n{name} record\n  {readable_line(facts[name])}")
    if facts["nodes"]:
        console.print("\nthe original, through the pipeline as it is now")
    for node in facts["nodes"]:
        console.print(f"  {node['node']}: {node['said']}")
        for record in node["records"]:
            console.print(f"    {readable_line(record)}")
    console.print(f"\nfailed at {row['node']}: {row['code']}\n  {row['message']}")


# -- changing -----------------------------------------------------------------------------------------------------


def _replayed(facts: Facts) -> str:
    from conduit_dagster.engine.compiled_pipeline import is_edit

    left = unusable_letters(facts)
    if facts["dry_run"]:
        many = count(letters_to_send(facts), "dead letter")
        said = f"{facts['pipeline']}: {many} would be sent again from the {facts['from']}{left}"
        reasons = [f"  {row['letters']:,} of {row['node']} {row['code']}" for row in facts["reasons"]]
        return "\n".join([said, *reasons])
    done = f"{facts['pipeline']}: {count(facts['replayed'], 'dead letter')} delivered{left}"
    failed = facts["failed"]
    if not failed:
        return done
    lines = [f"{done}, {failed:,} failed again and {'stays' if failed == 1 else 'stay'} open"]
    lines += [": ".join(filter(None, (f"  {one['node']}", one["code"], one["message"]))) for one in facts["errors"]]
    if facts["from"] == "source" and any(is_edit(error["node"]) for error in facts["errors"]):
        lines.append("  --set changed the record as its source gave it; --from node changes the one that failed")
    return "\n".join(lines)


def _discarded(facts: Facts) -> str:
    many = facts["letters"] - facts["held"] if facts["dry_run"] else facts["discarded"]
    verb = "would be" if facts["dry_run"] else "is" if many == 1 else "are"
    return f"{facts['pipeline']}: {count(many, 'dead letter')} {verb} discarded{held_letters(facts)}"
