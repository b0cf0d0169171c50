"""The frame around every verb: output, errors and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer

from conduit_dagster.cli.outcome import FAILED, Outcome, failure, unforeseen
from conduit_dagster.recovery.errors import ConduitError, FatalError

INTERRUPTED = 130

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON envelope and nothing else.")]
Paths = Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", help="Pipeline files or folders.")]


def perform(command: str, as_json: bool, work: Callable[[], Outcome]) -> NoReturn:
    """Does the work, prints what came of it, and ends the verb with its exit code."""
    if as_json:
        with _reserved_stdout() as write:
            outcome = _attempt(work)
            write(outcome.envelope(command) + "\n")
    else:
        outcome = _attempt(work)
        _show(outcome)
    raise typer.Exit(outcome.exit)


def _attempt(work: Callable[[], Outcome]) -> Outcome:
    try:
        return work()
    except ConduitError as error:
        return failure(error)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        stopped = failure(FatalError("interrupted", code="interrupted"))
        return Outcome(stopped.summary, None, INTERRUPTED, stopped.error)
    except Exception as error:  # noqa: BLE001  # every verb ends in an envelope or one clear line
        return failure(unforeseen(error))


def _show(outcome: Outcome) -> None:
    from conduit_dagster.cli.terminal import console, print_error

    if outcome.show is not None:
        outcome.show(console())
    if outcome.error is not None:
        sys.stdout.flush()
        print_error(console(sys.stderr), outcome.error)
    elif outcome.summary:
        console().print(outcome.summary)


@contextmanager
def _reserved_stdout() -> Generator[Callable[[str], None]]:
    """Sends to stderr what else is printed meanwhile: by a plugin, or by Spark's JVM, which inherits it."""
    stdout, sys.stdout = sys.stdout, sys.stderr
    saved = _swap_descriptor(stdout)
    try:
        yield lambda text: _write(stdout, saved, text)
    finally:
        sys.stdout = stdout
        if saved is not None:
            os.dup2(saved, 1)
            os.close(saved)


def _swap_descriptor(stdout: object) -> int | None:
    """Points descriptor 1 to stderr, where it is the process's own stdout; a duplicate of what it was."""
    try:
        if stdout is not sys.__stdout__ or sys.__stdout__ is None or sys.__stdout__.fileno() != 1:
            return None
        sys.__stdout__.flush()
        saved = os.dup(1)
        os.dup2(2, 1)
    except (OSError, ValueError):
        return None
    return saved


def _write(stdout: object, saved: int | None, text: str) -> None:
    if saved is None:
        stdout.write(text)  # type: ignore[attr-defined]  # pyright: ignore
        return
    data = memoryview(text.encode())
    while data:
        data = data[os.write(saved, data) :]


def broken_pipe() -> int:
    """The reader of our output is gone; nothing more is written, not even at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    return FAILED
