"""References to environment variables in a setting, as Conduit expands them (``os.ExpandEnv``).

Unlike in Conduit, an unset variable is reported and ``$$`` is a dollar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<braced>[^}\n]*)\}|(?P<open>\{)|(?P<bare>[A-Za-z_][A-Za-z0-9_]*))")


@dataclass(frozen=True)
class BadReference:
    """Reference that cannot be expanded. ``ordinal`` is its index among the references of the text, from 0."""

    ordinal: int
    text: str
    name: str | None
    """None if there is no name: ``${}`` or a brace that is never closed."""


@dataclass(frozen=True)
class ExpandedText:
    """Text with its variables expanded; bad references stay as written."""

    text: str
    bad: tuple[BadReference, ...] = ()


def expand(text: str, env: Mapping[str, str]) -> ExpandedText:
    """Replace ``${VAR}`` and ``$VAR``; ``$$`` becomes one dollar, a lone dollar stays.

    Trap: ``$x`` in a Go template is a reference too, as in Conduit, and has to be written ``$$x``.
    """
    if "$" not in text:
        return ExpandedText(text)
    parts: list[str] = []
    bad: list[BadReference] = []
    end = 0
    for ordinal, match in enumerate(_REFERENCE.finditer(text)):
        value = _value(match, env)
        if value is None:
            bad.append(BadReference(ordinal, match.group(), match["braced"] or match["bare"]))
        parts += [text[end : match.start()], match.group() if value is None else value]
        end = match.end()
    return ExpandedText("".join([*parts, text[end:]]), tuple(bad))


def offset_of(source: str, ordinal: int) -> int:
    """Return the offset of the reference with this ordinal in the text as written, quotes included."""
    for number, match in enumerate(_REFERENCE.finditer(source)):
        if number == ordinal:
            return match.start()
    return 0


def _value(match: re.Match[str], env: Mapping[str, str]) -> str | None:
    if match["dollar"]:
        return "$"
    name = match["braced"] or match["bare"]
    return env.get(name) if name else None
