"""Fields of ``.Payload.After`` that a template or an expression reads, as far as its text shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

_ACTION: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`')
_FIELD: Final = re.compile(r"\.Payload\.After\.([A-Za-z_]\w*)(?:\.\w+)*")
_HARMLESS: Final = re.compile(r"\.Operation\b")
_UNCLEAR: Final = re.compile(r"\$|(?<!\w)\.|\b(?:range|with|define|template|block)\b")
"""Syntax that may stand for a field, or for a document, without naming it."""

_PARTS: Final = frozenset({"before", "key", "metadata", "position"})


def template_fields(text: str) -> frozenset[str] | None:
    """Return the top-level fields that a Go template reads; None if its text does not show them.

    The operation counts as no field. Metadata, a key and a payload before may hold values of any field.
    """
    if any("}}" in quoted for quoted in _TEXT.findall(text)):
        return None
    actions = [_TEXT.sub('""', action) for action in _ACTION.findall(text)]
    rest = [_HARMLESS.sub("", _FIELD.sub("", action)) for action in actions]
    if any(map(_UNCLEAR.search, rest)):
        return None
    return frozenset(name for action in actions for name in _FIELD.findall(action))


def expression_fields(text: str) -> frozenset[str] | None:
    """Return the top-level fields that a Python expression reads; None as above."""
    try:
        return frozenset(_read(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, _UnclearError):
        return None


class _UnclearError(Exception):
    """Raised for a part of the record that is read as a whole."""


def _read(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="after"))):
            raise _UnclearError
        case ast.Attribute(value=ast.Name(id="after"), attr=name):
            yield name
        case ast.Subscript(value=ast.Name(id="after"), slice=ast.Constant(value=str(name))):
            yield name
        case ast.Name(id=name) if name == "after" or name in _PARTS:
            raise _UnclearError
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _read(child)
