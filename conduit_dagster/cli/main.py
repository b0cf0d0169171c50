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
from typing import Annotated

import typer

from conduit_dagster.cli import (
    dlq,
    doctor,
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
from conduit_dagster.cli.examples import epilog
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
app.command("doctor")(doctor.doctor)
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


def _show_examples(typers: typer.Typer, above: str = "") -> None:
    for command in typers.registered_commands:
        command.epilog = epilog(f"{above}{command.name}")
    for group in typers.registered_groups:
        assert group.typer_instance is not None, "groups are added as instances"
        _show_examples(group.typer_instance, f"{above}{group.name} ")


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
        print(Outcome(message, None, INVALID, flaw.fields()).envelope(known.removeprefix(NAME).strip()))
    else:
        print(f"error {flaw.code}: {message}\n  fix:    {flaw.fix}", file=sys.stderr)
    return INVALID


if __name__ == "__main__":
    sys.exit(main())
