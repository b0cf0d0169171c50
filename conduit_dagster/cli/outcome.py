"""What a verb did: the one envelope of ``--json``, its exit code, and what people see instead."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from conduit_dagster.recovery.errors import ConduitError, FatalError

if TYPE_CHECKING:
    from rich.console import Console

OK: Final = 0
FAILED: Final = 1
INVALID: Final = 2
ENVIRONMENT: Final = 3

# by the first word of an error's code; everything else is a failure at run time
_EXITS: Final = {
    "environment": ENVIRONMENT,
    "state": ENVIRONMENT,
    "usage": INVALID,
    "validation": INVALID,
    "option": INVALID,
}


@dataclass(frozen=True)
class Outcome:
    """The end of a verb."""

    summary: str
    result: Any = None
    exit: int = OK
    error: dict[str, Any] | None = None
    show: Callable[[Console], None] | None = None
    """Prints the result for people."""

    def envelope(self, command: str) -> str:
        """The line that ``--json`` prints."""
        fields = {
            "command": command,
            "ok": self.exit == OK,
            "summary": self.summary,
            "result": self.result,
            "error": self.error,
        }
        return json.dumps(fields, default=str)


def error_fields(error: ConduitError) -> dict[str, Any]:
    """An error as every envelope has it."""
    names = ("code", "message", "node", "place", "fix")
    return {name: getattr(error, name) for name in names}


def failure(error: ConduitError, result: Any = None) -> Outcome:
    """The outcome of a verb that an error ended."""
    code = _EXITS.get(error.code.partition(".")[0], FAILED)
    return Outcome(error.message, result, code, error_fields(error))


def unforeseen(error: Exception) -> ConduitError:
    """A mistake of ours, said in one line with its place."""
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


def usage_error(message: str, code: str, fix: str | None = None) -> FatalError:
    """Something in the command that can't be followed; ``code`` is what comes after ``usage.``."""
    return FatalError(message, code=f"usage.{code}", fix=fix)
