"""``conduit-dagster``: the command line.

Starting it imports neither Spark nor Dagster nor a verb's dependencies; these are imported when the verb runs.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from conduit_dagster.cli import (
    dlq,
    init,
    log_verbs,
    metrics,
    offsets,
    pipelines,
    plugins,
    positions,
    run,
    spark,
    top,
    trying,
    validate,
)
from conduit_dagster.cli.verb import (
    INTERRUPTED,
    INVALID,
    Outcome,
    broken_pipe,
    prepare_streams,
    unwritable,
    usage_error,
)

NAME = "conduit-dagster"
_OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""Most of a verb's objects live until its end: with the default of 700, a quarter of its time goes into collections."""

app = typer.Typer(
    name=NAME,
    no_args_is_help=True,
    add_completion=False,
    # plain text, the same in a terminal and in a pipe
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("validate")(validate.validate)
app.command("lint")(validate.lint)
app.command("dry-run")(trying.dry_run)
app.command("test")(trying.test)
app.command("doctor")(validate.doctor)
app.command("init")(init.init)
app.command("metrics")(metrics.metrics)
app.command("top")(top.top)
app.add_typer(pipelines.app, name="pipelines")
app.add_typer(log_verbs.app, name="log")
app.add_typer(offsets.app, name="offsets")
app.add_typer(positions.app, name="positions")
app.add_typer(dlq.app, name="dlq")
app.add_typer(spark.app, name="spark")
app.add_typer(plugins.connectors, name="connectors")
app.add_typer(plugins.processors, name="processors")


EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "run": ("run", "run pipelines/orders.yaml --once"),
    "validate": ("validate", "validate pipelines/orders.yaml --strict"),
    "lint": ("lint", "lint pipelines/orders.yaml"),
    "dry-run": ("dry-run pipelines/orders.yaml", "dry-run pipelines/orders.yaml --records 3 --pipeline orders"),
    "test": ("test", "test pipelines/orders.yaml --only adult"),
    "doctor": ("doctor --deep", "doctor pipelines/orders.yaml"),
    "init": ("init shop", "init processor trim.text"),
    "metrics": ("metrics", "metrics --serve 127.0.0.1:9400"),
    "top": ("top", "top --once --json"),
    "pipelines list": ("pipelines list --lag", "pipelines list --no-lag --json"),
    "pipelines describe": ("pipelines describe orders", "pipelines describe orders elsewhere/orders.yaml"),
    "pipelines start": ("pipelines start orders", "pipelines start orders --accept-new-state"),
    "pipelines stop": ("pipelines stop orders", "pipelines stop orders --force"),
    "pipelines delete": ("pipelines delete orders --dry-run", "pipelines delete orders"),
    "pipelines history": ("pipelines history orders", "pipelines history orders --since 2h"),
    "pipelines reload": ("pipelines reload", "pipelines reload --url http://dagster:3000"),
    "log current": ("log current orders", "log current orders --json"),
    "log oldest": ("log oldest orders", "log oldest orders --json"),
    "log show": ("log show orders --from 9 --to 15", "log show orders --source in --limit 5 --json"),
    "log compact": ("log compact orders --dry-run", "log compact orders --source in"),
    "log export": ("log export orders orders.log", "log export orders orders.log --from 0 --to 999"),
    "log import": ("log import orders orders.log --dry-run", "log import orders orders.log --as raw"),
    "offsets list": ("offsets list orders", "offsets list orders --json"),
    "offsets show": ("offsets show orders warehouse", "offsets show orders warehouse --json"),
    "offsets mark": ("offsets mark orders warehouse 14", "offsets mark orders warehouse --offset 12 --offset 14-15"),
    "offsets step": ("offsets step orders warehouse", "offsets step orders warehouse --dry-run"),
    "offsets drop": ("offsets drop orders totals:in --dry-run", "offsets drop orders totals:in"),
    "positions show": ("positions show", "positions show orders"),
    "positions rewind": ("positions rewind orders in --to-start", "positions rewind orders --to-offset 10 --dry-run"),
    "dlq list": ("dlq list orders --by-reason", "dlq list orders --since 2h --where 'after.amount > 100'"),
    "dlq show": ("dlq show orders/17.3", "dlq show orders/17.3 --json"),
    "dlq export": ("dlq export orders letters.jsonl", "dlq export orders letters.jsonl --since 1d"),
    "dlq replay": (
        "dlq replay orders --dry-run",
        "dlq replay orders --id orders/17.3 --from node --set '.Payload.After.amount=0'",
    ),
    "dlq discard": (
        "dlq discard orders --code field.unsuitable --note 'test data'",
        "dlq discard orders --note 'test data' --dry-run",
    ),
    "spark start": ("spark start", "spark start --json"),
    "spark stop": ("spark stop", "spark stop --json"),
    "spark status": ("spark status", "spark status --json"),
    "connectors list": ("connectors list", "connectors list --json"),
    "connectors describe": ("connectors describe postgres", "connectors describe file --json"),
    "processors list": ("processors list", "processors list --json"),
    "processors describe": ("processors describe field.set", "processors describe csv.decode"),
}
"""Examples shown below each verb's help. Tests check that each command exists."""


def _show_examples(typers: typer.Typer, above: str = "") -> None:
    for command in typers.registered_commands:
        command.epilog = _epilog(f"{above}{command.name}")
    for group in typers.registered_groups:
        assert group.typer_instance is not None, "groups are added as instances"
        _show_examples(group.typer_instance, f"{above}{group.name} ")


def _epilog(verb: str) -> str:
    """Return the text below a verb's help; line breaks are kept."""
    lines = "\n".join(f"  conduit-dagster {example}" for example in EXAMPLES[verb])
    return f"\b\nExamples:\n{lines}"


_show_examples(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"{NAME} {version(NAME)}")
        raise typer.Exit


@app.callback()
def options(
    folder: Annotated[
        Path | None,
        typer.Option("--project", "-C", metavar="DIR", help="Work as if started in DIR."),
    ] = None,
    _: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Data pipelines with delivery guarantees: Conduit's semantics as Dagster assets on Spark."""
    if folder is not None:
        _enter(folder)


def _enter(folder: Path) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise typer.BadParameter(f"{folder}: {error.strerror}", param_hint="--project") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    prepare_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    # the interpreter would traverse everything imported once more, only to discard it
    atexit.register(gc.freeze)
    try:
        code = app(words, prog_name=NAME, standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        return _misused(error, words)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return broken_pipe()
    except OSError as error:
        return unwritable(error)
    return int(code or 0)


def _misused(error: typer.TyperException, words: list[str]) -> int:
    """Print the error of an invalid command line, or the help if no command was given; return the exit code."""
    message = error.format_message()
    if message.startswith("Usage:"):
        print(message, file=sys.stderr)
        return INVALID
    # as far as the command line was understood: a mistyped verb has no help of its own
    known = getattr(getattr(error, "ctx", None), "command_path", NAME)
    flaw = usage_error(message, "command", f"{known} --help")
    if "--json" in words:
        print(Outcome(message, None, INVALID, flaw).envelope(known.removeprefix(NAME).strip()))
    else:
        print(f"error {flaw.code}: {message}\n  fix:    {flaw.fix}", file=sys.stderr)
    return INVALID


if __name__ == "__main__":
    sys.exit(main())
