"""Frame around every verb: output, errors and exit codes."""

from __future__ import annotations

import inspect
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from conduit_dagster.recovery.errors import ConduitError, FatalError, from_os_error
from conduit_dagster.secret_values import hide, hide_in

if TYPE_CHECKING:
    from rich.console import Console

    from conduit_dagster.config.project import Project
    from conduit_dagster.engine.bound_pipeline import Catalogue

OK: Final = 0
FAILED: Final = 1
INVALID: Final = 2
ENVIRONMENT: Final = 3

# by the first part of an error's code; all others are failures at run time
_EXITS: Final = {
    "environment": ENVIRONMENT,
    "state": ENVIRONMENT,
    "usage": INVALID,
    "validation": INVALID,
    "option": INVALID,
}


@dataclass(frozen=True)
class Outcome:
    """Outcome of a verb."""

    summary: str
    result: Any = None
    exit: int = OK
    error: ConduitError | None = None
    show: Callable[[Console], None] | None = None
    """Function that prints the result as text."""

    def envelope(self, command: str) -> str:
        """Return the line that ``--json`` prints, without secrets."""
        fields = {
            "command": command,
            "ok": self.exit == OK,
            "summary": hide(self.summary),
            "result": hide_in(self.result),
            "error": None if self.error is None else hide_in(self.error.fields()),
        }
        return json.dumps(fields, default=lambda value: hide(str(value)))


def failure(error: ConduitError, result: Any = None) -> Outcome:
    """Return the outcome of a verb that ended with an error."""
    code = _EXITS.get(error.code.partition(".")[0], FAILED)
    return Outcome(error.message, result, code, error)


def unforeseen(error: Exception) -> ConduitError:
    """Return the error for an exception: itself, that of a file or the state store, or an internal error."""
    if isinstance(error, ConduitError):
        return error
    if isinstance(error, OSError) and error.filename:
        return from_os_error(error, "a file can't be used")
    if "sqlalchemy" in sys.modules:  # otherwise the store is unused, and the import takes half a second
        from sqlalchemy.exc import DBAPIError

        from conduit_dagster.state.database import unreachable

        if isinstance(error, DBAPIError):
            return unreachable(None, error, "the state store does not answer")
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
    made = FatalError(
        f"this should not happen: {type(error).__name__}: {error}",
        code="internal.error",
        place=place,
        fix="report it with the command and its files",
    )
    made.__cause__ = error
    return made


def count(number: int, noun: str) -> str:
    """Format a count: ``1 file``, ``2,000 files``; the noun's plural is regular."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def usage_error(message: str, code: str, fix: str | None = None) -> FatalError:
    """Return the error for an invalid command; ``code`` is the part after ``usage.``."""
    return FatalError(message, code=f"usage.{code}", fix=fix)


def current_project() -> Project:
    """Return the project of the working directory."""
    from conduit_dagster.config.project import Project

    return Project.find(Path.cwd())


def current_catalogue(paths: Sequence[str] = (), strict: bool = False) -> Catalogue:
    """Return the checked pipelines of files and folders, by default those of the working directory's project."""
    from conduit_dagster.engine.bound_pipeline import open_catalogue

    return open_catalogue(current_project(), paths, strict)


INTERRUPTED = 130

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON envelope and nothing else.")]
AcceptNewState = Annotated[
    bool,
    typer.Option(
        "--accept-new-state",
        help="Take a state store that is empty or older than the project's last one: records are delivered again.",
    ),
]
Paths = Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", help="Pipeline files or folders.")]


def perform(command: str, as_json: bool, work: Callable[[], Outcome]) -> NoReturn:
    """Do the work, print its outcome, and end the verb with its exit code."""
    if as_json:
        with _reserved_stdout() as write:
            outcome = _attempt(command, work)
            write(outcome.envelope(command) + "\n")
    else:
        outcome = _attempt(command, work)
        _show(outcome)
    raise typer.Exit(outcome.exit)


def verb(command: str) -> Callable[[Callable[..., Outcome]], Callable[..., NoReturn]]:
    """Make a function that returns its outcome a verb, with the option ``--json``: see :func:`perform`."""

    def decorate(work: Callable[..., Outcome]) -> Callable[..., NoReturn]:
        @wraps(work)
        def run(*, as_json: bool = False, **options: Any) -> NoReturn:
            perform(command, as_json, lambda: work(**options))

        own = inspect.signature(work, eval_str=True)
        json_option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
        run.__signature__ = own.replace(  # pyright: ignore[reportAttributeAccessIssue]  # Typer reads it
            parameters=[*own.parameters.values(), json_option]
        )
        return run

    return decorate


def _attempt(command: str, work: Callable[[], Outcome]) -> Outcome:
    try:
        return work()
    except ConduitError as error:
        return failure(error)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        fix = "what it changed by then stays; it can be typed again"
        stopped = failure(FatalError(f"{command} was interrupted before its end", code="interrupted", fix=fix))
        return Outcome(stopped.summary, None, INTERRUPTED, stopped.error)
    except Exception as error:  # noqa: BLE001  # every verb ends in an envelope or one clear line
        return failure(unforeseen(error))


def _show(outcome: Outcome) -> None:
    from conduit_dagster.cli.terminal import console, print_error

    if outcome.show is not None:
        outcome.show(console())
    if outcome.error is not None:
        sys.stdout.flush()
        print_error(console(sys.stderr), outcome.error.fields())
    elif outcome.summary:
        console().print(outcome.summary)


@contextmanager
def _reserved_stdout() -> Generator[Callable[[str], None]]:
    """Redirect all other output to stderr meanwhile: that of plugins, and of Spark's JVM, which inherits stdout."""
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
    """Point descriptor 1 to stderr if it is the process's own stdout; return a duplicate of the original, or None."""
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


def prepare_streams() -> None:
    """Open missing standard streams as the null device, and escape what a stream's encoding can't hold.

    A closed descriptor would otherwise be taken by the next file that is opened, such as the state store.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  # never closed
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def broken_pipe() -> int:
    """Discard all further output, even at exit, because its reader has ended; return the exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    return FAILED


def unwritable(error: OSError) -> int:
    """Print the error of an output that can't be written, such as on a full disk; return the exit code."""
    broken_pipe()
    fix = "what the command changed is done: free some space, or write elsewhere, before you repeat it"
    print(f"error environment.output: the output can't be written: {error.strerror or error}", file=sys.stderr)
    print(f"  fix:    {fix}", file=sys.stderr)
    return ENVIRONMENT
