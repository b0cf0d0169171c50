"""Parsing of a Go template: its text and actions, the tokens of an action, and its syntax tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from conduit_dagster.expressions import limits
from conduit_dagster.expressions.compiled import ExpressionError, nearest
from conduit_dagster.expressions.gotemplate.template_functions import TABLE

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
    """One token of an action and its start column."""

    kind: str
    text: str
    column: int


class Action(NamedTuple):
    """The tokens between ``{{`` and ``}}``; a comment has none."""

    tokens: list[Token]
    column: int


def split(template: str) -> Iterator[str | Action]:
    """Yield the template's parts in order, with trim markers already applied."""
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


_SIMPLE = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, '"': 34}
_ESCAPE = re.compile(
    r"\\(?:(?P<simple>[abfnrtv\\\"])|x(?P<hex>[0-9a-fA-F]{2})|(?P<octal>[0-3][0-7]{2})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|(?P<wrong>.))",
    re.DOTALL,
)
_INTEGER = re.compile(r"[+-]?(?:0[xX](?:_?[0-9a-fA-F])+|0[bB](?:_?[01])+|0[oO]?(?:_?[0-7])+|0|[1-9](?:_?[0-9])*)")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?")
_DIGITS = 400


def text_literal(token: Token) -> str:
    """Return the value of ``"…"`` or of a raw string in back quotes."""
    if token.kind == "raw":
        return token.text[1:-1].replace("\r", "")
    body = token.text[1:-1]
    pieces: list[bytes] = []
    position = 0
    for found in _ESCAPE.finditer(body):
        pieces += [body[position : found.start()].encode(errors="surrogatepass"), _escaped(found, token)]
        position = found.end()
    pieces.append(body[position:].encode(errors="surrogatepass"))
    return _decoded(b"".join(pieces), token)


def _escaped(found: re.Match[str], token: Token) -> bytes:
    form, value = found.lastgroup, found[found.lastgroup or 0]
    if form == "simple":
        return bytes([_SIMPLE[value]])
    if form in ("hex", "octal"):
        return bytes([int(value, 16 if form == "hex" else 8)])
    code = int(value, 16) if form != "wrong" else -1
    if 0 <= code < 0xD800 or 0xDFFF < code <= 0x10FFFF:
        return chr(code).encode()
    raise ExpressionError(f"Go has no escape {found[0]!r}", token.column + 1 + found.start())


def _decoded(value: bytes, token: Token) -> str:
    try:
        return value.decode(errors="surrogatepass")
    except UnicodeDecodeError:
        raise ExpressionError("the text is not UTF-8", token.column) from None


def number_literal(token: Token) -> int | float:
    """Parse an integer or a float in Go's syntax. Ours are exact: an integer may be longer than 64 bits."""
    text = token.text
    if len(text) > _DIGITS:
        raise ExpressionError(f"the number has more than {_DIGITS} characters", token.column)
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text) and abs(float(text)) != float("inf"):
        return float(text)
    raise ExpressionError(f"not a number: {text}", token.column)


def _integer(text: str) -> int:
    old_octal = re.fullmatch(r"([+-]?)0_?([0-7_]+)", text)
    return int(f"{old_octal[1]}0o{old_octal[2]}" if old_octal else text, 0)


@dataclass(frozen=True, slots=True)
class Literal:
    """A string, number, boolean or nil."""

    value: str | int | float | bool | None
    column: int


@dataclass(frozen=True, slots=True)
class Path:
    """A path such as ``.Payload.After.x``; without names it is ``.`` alone."""

    names: tuple[str, ...]
    column: int
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Fields of the result of a parenthesised pipeline."""

    base: Node
    names: tuple[str, ...]
    column: int


@dataclass(frozen=True, slots=True)
class Call:
    """A function and its arguments; a piped value is the last argument."""

    function: str
    arguments: tuple[Node, ...]
    column: int


Node = Literal | Path | Chain | Call


_WORDS = frozenset({"if", "else", "end", "range", "with", "define", "template", "block", "break", "continue"})
_CONSTANTS = {"true": True, "false": False, "nil": None}
INSTEAD = "write it as a Python expression: `condition: after.x == 1`, or `expression:` for a value"


class Parser:
    """Parser of one action: a pipeline of commands."""

    def __init__(self, action: Action) -> None:
        self._tokens = action.tokens
        self._end = Token("end", "}}", action.tokens[-1].column + len(action.tokens[-1].text))
        self._next = 0
        self._depth = 0

    def action(self) -> Node:
        """Return the action's syntax tree. Raises :class:`ExpressionError` for invalid Go and for unsupported Go."""
        node = self._pipeline()
        token = self._peek()
        if token.kind != "end":
            raise ExpressionError(f"unexpected {token.text!r}", token.column)
        return node

    def _peek(self) -> Token:
        while self._next < len(self._tokens) and self._tokens[self._next].kind == "space":
            self._next += 1
        return self._tokens[self._next] if self._next < len(self._tokens) else self._end

    def _take(self) -> Token:
        token = self._peek()
        self._next += 1
        return token

    def _pipeline(self) -> Node:
        node = self._command(None)
        stages = 1
        while self._peek().kind == "pipe":
            pipe = self._take()
            stages += 1
            self._check_depth(stages, pipe)
            node = self._command(node)
        return node

    def _check_depth(self, depth: int, token: Token) -> None:
        if depth > limits.DEPTH:
            raise ExpressionError(f"the template is nested more than {limits.DEPTH} deep", token.column, "split it")

    def _command(self, piped: Node | None) -> Node:
        token = self._peek()
        if token.kind == "name" and token.text not in _CONSTANTS:
            return self._call(self._take(), piped)
        node = self._operand()
        if piped is not None:
            raise ExpressionError("after `|` comes a function", token.column)
        if isinstance(node, Literal) and node.value is None:
            raise ExpressionError("nil alone is no value", token.column)
        self._check_alone(token)
        return node

    def _check_alone(self, token: Token) -> None:
        following = self._peek()
        if following.kind not in ("end", "pipe", "close", "assign"):
            fix = ODD_NAME if token.kind == "field" else None
            message = f"unexpected {following.text!r}: only a function takes arguments"
            raise ExpressionError(message, following.column, fix)

    def _call(self, name: Token, piped: Node | None) -> Call:
        self._check_function(name)
        arguments: list[Node] = []
        while self._peek().kind not in ("end", "pipe", "close", "assign"):
            arguments.append(self._operand())
        arguments += [piped] if piped is not None else []
        return Call(name.text, tuple(arguments), name.column)

    def _check_function(self, name: Token) -> None:
        if name.text in _WORDS:
            raise ExpressionError(f"`{name.text}` is not translated from Go templates", name.column, INSTEAD)
        if name.text not in TABLE:
            close = nearest(name.text, TABLE)
            fix = f"{close} Or {INSTEAD}" if close else INSTEAD
            raise ExpressionError(f"the function `{name.text}` is not translated from Go templates", name.column, fix)

    def _operand(self) -> Node:
        token = self._take()
        if token.kind in ("field", "dot"):
            names = self._fields([token]) if token.kind == "field" else []
            return Path(tuple(n.text[1:] for n in names), token.column, tuple(n.column for n in names))
        if token.kind == "open":
            return self._parenthesis(token)
        node = self._literal(token)
        if self._adjacent():
            raise ExpressionError(f"unexpected {self._peek().text!r} after {token.text}", self._peek().column)
        return node

    def _adjacent(self) -> bool:
        return self._next < len(self._tokens) and self._tokens[self._next].kind in ("field", "dot")

    def _fields(self, found: list[Token]) -> list[Token]:
        while self._adjacent():
            token = self._take()
            if token.kind == "dot":
                raise ExpressionError("a field's name is missing after `.`", token.column)
            found.append(token)
        return found

    def _parenthesis(self, opened: Token) -> Node:
        self._depth += 1
        self._check_depth(self._depth, opened)
        node = self._pipeline()
        if self._take().kind != "close":
            raise ExpressionError("this parenthesis is not closed", opened.column, "close it with )")
        self._depth -= 1
        names = self._fields([])
        return Chain(node, tuple(n.text[1:] for n in names), names[0].column) if names else node

    def _literal(self, token: Token) -> Node:
        if token.kind in ("text", "raw"):
            return Literal(text_literal(token), token.column)
        if token.kind == "number":
            return Literal(number_literal(token), token.column)
        if token.text in _CONSTANTS:
            return Literal(_CONSTANTS[token.text], token.column)
        return self._other(token)

    def _other(self, token: Token) -> Node:
        if token.kind == "name":
            self._check_function(token)
            return Call(token.text, (), token.column)
        return self._refuse(token)

    def _refuse(self, token: Token) -> NoReturn:
        if token.kind == "variable" or (token.kind == "assign" and token.text != ","):
            fix = "write the field itself: .Payload.After.x" if token.text == "$" else INSTEAD
            raise ExpressionError("a variable (`$`, `:=`) is not translated from Go templates", token.column, fix)
        if token.kind == "character":
            raise ExpressionError("a character in single quotes is not translated", token.column, 'write a text: "a"')
        raise ExpressionError(f"unexpected {token.text!r}", token.column)
