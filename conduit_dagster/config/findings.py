"""Findings: one per mistake in a file, with its code, its place and a fix.

An unexpected exception while one file is checked becomes a finding of that file (:func:`isolated`): it is a defect of
this project, and must not keep other files from being loaded.
"""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, LiteralString

from pydantic_core import PydanticCustomError

from conduit_dagster.secret_values import hide

if TYPE_CHECKING:
    from conduit_dagster.config.parse import ParsedPipeline

Severity = Literal["error", "warning"]

_SHOWN = 120
UNSET = (
    "config.env_unset",
    "config.env_invalid",
    "config.secret_failed",
    "config.secret_unknown",
    "config.secret_unreadable",
)
"""Codes of findings on values that could not be expanded."""


@dataclass(frozen=True)
class Finding:
    """One mistake in one file.

    ``code`` is stable; the texts are not. ``line`` and ``column`` count from 1. ``path`` is a JSON pointer
    into the YAML document, with the pipeline's index. ``got`` is the text as written: variables are not
    expanded in it, so that a secret from the environment is never printed. Secrets are masked in all texts.
    """

    code: str
    severity: Severity
    file: str
    line: int
    column: int
    path: str
    message: str
    got: str | None = None
    expected: str | None = None
    fix: str | None = None
    trace: str | None = field(default=None, repr=False, compare=False)
    """Traceback of an exception, shown only on request: it may quote values from the environment."""

    def __post_init__(self) -> None:
        for name in ("message", "got", "expected", "fix", "trace"):
            if text := getattr(self, name):
                object.__setattr__(self, name, hide(text))

    @property
    def place(self) -> str:
        """``FILE:LINE:COLUMN``."""
        return f"{self.file}:{self.line}:{self.column}"

    @property
    def is_error(self) -> bool:
        """Whether the finding prevents its pipeline from running."""
        return self.severity == "error"

    def as_json(self, debug: bool = False) -> dict[str, str | int | None]:
        """Return all fields, in declaration order; ``trace`` only with ``debug``."""
        fields = asdict(self)
        return fields if debug else {name: value for name, value in fields.items() if name != "trace"}

    def render(self, debug: bool = False) -> str:
        """Return the finding as text: one line with its place, then got, expected and fix; ``debug``: and its trace."""
        path = f" at {self.path}" if self.path else ""
        lines = [f"{self.place}: {self.severity} {self.code}{path}: {self.message}"]
        for label, text in (("got", self.got), ("expected", self.expected), ("fix", self.fix)):
            if text is not None:
                lines.append(f"  {label + ':':<10}{text}")
        return "\n".join([*lines, *self._trace_lines()] if debug else lines)

    def _trace_lines(self) -> list[str]:
        return [f"  {line}" for line in (self.trace or "").splitlines()]


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that was most likely meant, or None.

    Another spelling style (``deadLetterQueue``) counts as the same word.
    """
    by_letters = {_letters(candidate): candidate for candidate in candidates}
    if _letters(word) in by_letters:
        return by_letters[_letters(word)]
    close = difflib.get_close_matches(_letters(word), by_letters, n=1, cutoff=0.6)
    return by_letters[close[0]] if close else None


def did_you_mean(word: str, candidates: Iterable[str]) -> str | None:
    """Return a ``fix`` that names the nearest candidate, or None."""
    match = nearest(word, candidates)
    return None if match is None else f"did you mean {match}?"


def shown(value: object) -> str:
    """Return a value on one short line, control characters escaped."""
    text = value if isinstance(value, str) else repr(value)
    text = text if text and text.isprintable() else repr(text)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def by_place(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings in reading order."""
    return sorted(findings, key=lambda finding: (finding.file, finding.line, finding.column))


def unresolved(findings: Iterable[Finding]) -> frozenset[str]:
    """Return the references that have no value, as written."""
    return frozenset(finding.got for finding in findings if finding.code in UNSET and finding.got is not None)


def without_consequences(findings: list[Finding]) -> list[Finding]:
    """Leave out findings on a value that contains an unset variable: its real content is unknown."""
    unset = {finding.path for finding in findings if finding.code in UNSET}
    if not unset:
        return findings
    return [one for one in findings if one.code in UNSET or one.path not in unset]


def _letters(word: str) -> str:
    return re.sub(r"[-_. ]", "", word).lower()


def refuse(
    message: str,
    *,
    code: LiteralString = "config.field_invalid",
    expected: str | None = None,
    fix: str | None = None,
    at: str | None = None,
    column: int | None = None,
) -> PydanticCustomError:
    """Return the error for a validator of a field or of a plugin's setting to raise; it becomes a finding.

    Never put a field's value itself into the texts: it may come from the environment and be secret. ``at`` names the
    field at fault in a rule between fields; ``column`` is the place of the fault in the value's text, from 0.
    """
    context = {"message": message, "expected": expected, "fix": fix, "at": at, "column": column}
    return PydanticCustomError(code, "{message}", context)


_PACKAGE = Path(__file__).parent.parent
_FIX = "report it with this file; conduit-dagster validate --debug shows the traceback. Other files are not affected"


@contextmanager
def isolated(parsed: ParsedPipeline, doing: str) -> Generator[None]:
    """Convert an exception into a finding of the pipeline, and suppress it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # one file must not take the others down
        line, column = parsed.locate()
        parsed.findings.append(unexpected(error, doing, (parsed.file, line, column, parsed.pointer)))


def unexpected(error: Exception, doing: str, at: tuple[str, int, int, str]) -> Finding:
    """Return the finding for an unexpected exception; ``at``: file, line, column and pointer.

    The exception's own text is only in the traceback: it may quote a value from the environment.
    """
    message = f"{doing} failed unexpectedly: {type(error).__name__} in {_place(error)}"
    trace = "".join(traceback.format_exception(error))
    return Finding("config.check_failed", "error", *at, message, fix=_FIX, trace=trace)


def _place(error: Exception) -> str:
    """Return the innermost line of this project in the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)] or frames
    if not own:
        return "an unknown place"
    path = Path(own[-1].filename)
    name = path.relative_to(_PACKAGE.parent) if path.is_relative_to(_PACKAGE) else path
    return f"{name}:{own[-1].lineno}"
