"""Splits a template into text and actions, and an action into tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from conduit_dagster.expressions.errors import ExpressionError

_OPEN = re.compile(r"\{\{(-(?=[ \t\r\n]))?")
_COMMENT = re.compile(r"[ \t\r\n]*/\*.*?\*/", re.DOTALL)
_SPACE = " \t\r\n"
_CLOSE = re.compile(r"([ \t\r\n]+-)?\}\}")
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    | (?P<field>\.[^\W\d]\w*)
    | (?P<number>[+-]?(?:\d\w*(?:\.\w*)?|\.\d\w*)(?:(?<=[eEpP])[+-]\w+)?)
    | (?P<dot>\.)
    | (?P<name>[^\W\d]\w*)
    | (?P<text>"(?:[^"\\\n]|\\.)*")
    | (?P<raw>`[^`]*`)
    | (?P<character>'(?:[^'\\\n]|\\.)*')
    | (?P<variable>\$\w*)
    | (?P<assign>:=|=|,)
    | (?P<open>\()
    | (?P<close>\))
    | (?P<pipe>\|)""",
    re.VERBOSE,
)
_OPERANDS = frozenset({"field", "number", "name", "text", "raw", "dot", "character", "variable"})
_AFTER_OPERAND = frozenset({"space", "field", "dot", "close", "pipe", "assign", "open"})

ODD_NAME = 'a field whose name is not one word is written {{ index .Payload.After "the name" }}'


class Token(NamedTuple):
    """One token of an action and where it begins."""

    kind: str
    text: str
    column: int


class Action(NamedTuple):
    """What stands between ``{{`` and ``}}``. No tokens: a comment."""

    tokens: list[Token]
    column: int


def split(template: str) -> Iterator[str | Action]:
    """The template's parts in order, with what the trim markers trim already gone."""
    position, trim = 0, False
    while opened := _OPEN.search(template, position):
        text = template[position : opened.start()]
        text = text.lstrip(_SPACE) if trim else text
        yield text.rstrip(_SPACE) if opened[1] else text
        action, position, trim = _action(template, opened)
        yield action
    yield template[position:].lstrip(_SPACE) if trim else template[position:]


def _action(template: str, opened: re.Match[str]) -> tuple[Action, int, bool]:
    if comment := _COMMENT.match(template, opened.end()):
        return _commented(template, opened.start(), comment.end())
    tokens, end = _tokens(template, opened)
    closed = _CLOSE.match(template, end)
    if closed is None:
        raise _unexpected(template, end, opened.start())
    return Action(tokens, opened.start()), closed.end(), closed[1] is not None


def _commented(template: str, start: int, end: int) -> tuple[Action, int, bool]:
    closed = _CLOSE.match(template, end)
    if closed is None:
        raise ExpressionError("a comment stands alone in its {{/* */}}", start)
    return Action([], start), closed.end(), closed[1] is not None


def _tokens(template: str, opened: re.Match[str]) -> tuple[list[Token], int]:
    tokens: list[Token] = []
    position = opened.end()
    while not _CLOSE.match(template, position):
        found = _TOKEN.match(template, position)
        if found is None:
            raise _unexpected(template, position, opened.start())
        tokens.append(Token(found.lastgroup or "", found[0], position))
        _check_adjacent(tokens)
        position = found.end()
    _check_any(tokens, opened.start())
    return tokens, position


def _check_adjacent(tokens: list[Token]) -> None:
    if len(tokens) < 2 or tokens[-2].kind not in _OPERANDS or tokens[-1].kind in _AFTER_OPERAND:
        return
    fix = ODD_NAME if tokens[-2].kind == "field" else None
    raise ExpressionError(f"unexpected {tokens[-1].text!r} after {tokens[-2].text!r}", tokens[-1].column, fix)


def _check_any(tokens: list[Token], column: int) -> None:
    if all(token.kind == "space" for token in tokens):
        raise ExpressionError("the action {{ }} is empty", column)


def _unexpected(template: str, position: int, opened: int) -> ExpressionError:
    rest = template[position : position + 1]
    if not rest:
        return ExpressionError("this action is not closed", opened, "close it with }}")
    if rest in "\"`'":
        return ExpressionError("this text is not closed", position, f"close it with {rest}")
    fix = ODD_NAME if rest == "-" else None
    return ExpressionError(f"unexpected {rest!r} in an action", position, fix)
