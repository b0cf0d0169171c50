"""Syntax of field references, as in Conduit: ``.Payload.After.address.city``.

A name that contains a dot, a comma or a quote is written in brackets: ``.Payload.After["a.b"]``. Everything after
``.Metadata.`` is a single name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

Root = Literal["after", "before", "key", "metadata", "operation", "position"]
"""The part of a record that a reference begins with."""

_ROOTS: Final[dict[str, Root]] = {
    ".Payload.After": "after",
    ".Payload.Before": "before",
    ".Key": "key",
    ".Metadata": "metadata",
    ".Operation": "operation",
    ".Position": "position",
}
_ANY_ROOT: Final = f"begin with {', '.join(list(_ROOTS)[:-1])} or {list(_ROOTS)[-1]}"
_QUOTED = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\''
_SEGMENT = re.compile(rf"\.(?P<plain>[^.\[]+)|\[(?P<quoted>{_QUOTED})\]", re.DOTALL)
_METADATA_ENTRY = re.compile(r"\$?\.[Mm]etadata\.")
_PLAIN = re.compile(r"""[^.,"'\[\]]+""")
_NEVER_PLAIN = re.compile(r"""[,"'\]]""")
"""Characters that only a list of references, or one with quotes in the wrong place, has outside brackets."""
_ESCAPED = re.compile(r"""\\(["'\\])""")


class ReferenceSyntaxError(ValueError):
    """Raised for text that is not a reference. ``column`` counts characters from 0; ``fix`` suggests a correction."""

    def __init__(self, message: str, column: int, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.column = column
        self.fix = fix


class _Segment(NamedTuple):
    name: str
    column: int


def read_reference(text: str) -> tuple[Root, tuple[str, ...]]:
    """Return the part of the record that ``text`` begins with, and the path of names inside it.

    Raises :class:`ReferenceSyntaxError`.
    """
    if match := _METADATA_ENTRY.match(text):
        return "metadata", (_metadata_name(text, match.end()),)
    segments = list(_segments(text))
    root, taken = _root(text, segments)
    rest = segments[taken:]
    if root in ("operation", "position"):
        _refuse(text, rest)
    elif root == "metadata":
        _refuse(text, rest[1:])
    return root, tuple(segment.name for segment in rest)


def unquote(text: str) -> str:
    """Return the content of a quoted name: a backslash escapes a quote or a backslash and nothing else."""
    return _ESCAPED.sub(r"\1", text[1:-1])


def spell(root: Root, path: tuple[str, ...]) -> str:
    """Return the text of a reference, for messages."""
    start = next(text for text, name in _ROOTS.items() if name == root)
    return start + "".join(f".{name}" if _PLAIN.fullmatch(name) else f'["{name}"]' for name in path)


def _metadata_name(text: str, at: int) -> str:
    name = text[at:]
    if not name or "[" in name:
        fix = 'write .Metadata.name, or .Metadata["name"]'
        raise ReferenceSyntaxError(f"{text!r} names no metadata entry", at, fix)
    _check_plain(text, name, at)
    return name


def _check_plain(text: str, name: str, at: int) -> None:
    if found := _NEVER_PLAIN.search(name):
        message, fix = f"{text!r}: a name holds {found[0]}", 'write one field; such a name stands in brackets: ["…"]'
        raise ReferenceSyntaxError(message, at + found.start(), fix)


def _segments(text: str) -> Iterator[_Segment]:
    at = 1 if text.startswith("$.") else 0
    while at < len(text) or at == 0:
        match = _SEGMENT.match(text, at)
        if match is None or text[0] == "[":
            raise _malformed(text, at)
        if match["plain"]:
            _check_plain(text, match["plain"], match.start("plain"))
        name = match["plain"] or unquote(match["quoted"])
        yield _Segment(name, at)
        at = match.end()


def _malformed(text: str, at: int) -> ReferenceSyntaxError:
    if at == 0:
        return ReferenceSyntaxError(f"{text!r} is not a field reference", 0, _ANY_ROOT)
    if text[at] == "[":
        fix = 'write a name in quotes, such as ["first name"]; items of a list have no reference'
        return ReferenceSyntaxError(f"{text!r}: a bracket holds no quoted name", at, fix)
    return ReferenceSyntaxError(f"{text!r}: a name is missing", at, 'write a name after the dot, or ["…"]')


def _root(text: str, segments: list[_Segment]) -> tuple[Root, int]:
    for length in (1, 2):
        # Conduit also takes .payload.after, .key and so on
        spelling = "." + ".".join(segment.name[:1].upper() + segment.name[1:] for segment in segments[:length])
        if length <= len(segments) and spelling in _ROOTS:
            return _ROOTS[spelling], length
    written = "." + ".".join(segment.name for segment in segments[:2])
    wrong = segments[1] if segments[0].name == "Payload" and len(segments) > 1 else segments[0]
    raise ReferenceSyntaxError(f"{text!r} does not begin with a part of a record", wrong.column, _nearest(written))


def _nearest(written: str) -> str:
    spellings = {root.lower(): root for root in _ROOTS}
    candidates = [written.lower(), "." + written.lower().split(".")[1]]
    for candidate in candidates:
        if found := difflib.get_close_matches(candidate, spellings, n=1, cutoff=0.7):
            return f"did you mean {spellings[found[0]]}?"
    return _ANY_ROOT


def _refuse(text: str, rest: list[_Segment]) -> None:
    if rest:
        fix = f"end it here: {text[: rest[0].column]}"
        raise ReferenceSyntaxError(f"{text!r} goes on after a part that has no fields", rest[0].column, fix)
