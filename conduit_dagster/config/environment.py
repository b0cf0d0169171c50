"""References in a setting: environment variables as Conduit expands them (``os.ExpandEnv``), and secrets (ours).

Unlike in Conduit, an unset variable is reported and ``$$`` is a dollar. ``references.py`` resolves the values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from conduit_dagster.config.secret_providers import Unresolved

_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<braced>[^}\n]*)\}|(?P<open>\{)|(?P<bare>[A-Za-z_][A-Za-z0-9_]*))")


@dataclass(frozen=True)
class BadReference:
    """Reference that cannot be expanded. ``ordinal`` is its index among the references of the text, from 0."""

    ordinal: int
    text: str
    name: str | None
    """None if there is no name: ``${}`` or a brace that is never closed."""
    why: Unresolved | None = None
    """The problem, unless it is just an unset variable."""


class Lookup(Protocol):
    """Values by name: a mapping of environment variables, or everything that a document may refer to."""

    def get(self, name: str, /) -> str | Unresolved | None:
        """Return the value, or the problem of a reference; None for an unset variable."""
        ...


@dataclass(frozen=True)
class ExpandedText:
    """Text with its variables expanded; bad references stay as written."""

    text: str
    bad: tuple[BadReference, ...] = ()


def expand(text: str, values: Lookup) -> ExpandedText:
    """Replace ``${VAR}``, ``$VAR`` and ``${file:PATH}``; ``$$`` becomes one dollar, a lone dollar stays.

    Trap: as in Conduit, ``$x`` in a Go template is a reference too, and must be written ``$$x``.
    """
    if "$" not in text:
        return ExpandedText(text)
    parts: list[str] = []
    bad: list[BadReference] = []
    end = 0
    for ordinal, match in enumerate(_REFERENCE.finditer(text)):
        value = _value(match, values)
        if not isinstance(value, str):
            bad.append(BadReference(ordinal, match.group(), match["braced"] or match["bare"], value))
        parts += [text[end : match.start()], value if isinstance(value, str) else match.group()]
        end = match.end()
    return ExpandedText("".join([*parts, text[end:]]), tuple(bad))


def offset_of(source: str, ordinal: int) -> int:
    """Return the offset of the reference with this ordinal in the text as written, quotes included."""
    for number, match in enumerate(_REFERENCE.finditer(source)):
        if number == ordinal:
            return match.start()
    return 0


def _value(match: re.Match[str], values: Lookup) -> str | Unresolved | None:
    if match["dollar"]:
        return "$"
    name = match["braced"] or match["bare"]
    return values.get(name) if name else None
