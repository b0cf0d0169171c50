"""Parses the tokens of one action."""

from __future__ import annotations

from typing import NoReturn

from conduit_dagster.expressions import limits
from conduit_dagster.expressions.errors import ExpressionError, nearest
from conduit_dagster.expressions.gotemplate.lexer import ODD_NAME, Action, Token
from conduit_dagster.expressions.gotemplate.literals import number_literal, text_literal
from conduit_dagster.expressions.gotemplate.nodes import Call, Chain, Literal, Node, Path
from conduit_dagster.expressions.gotemplate.table import TABLE

_WORDS = frozenset({"if", "else", "end", "range", "with", "define", "template", "block", "break", "continue"})
_CONSTANTS = {"true": True, "false": False, "nil": None}
INSTEAD = "write it as a Python expression: `condition: after.x == 1`, or `expression:` for a value"


class Parser:
    """Reads one action: a pipeline of commands."""

    def __init__(self, action: Action) -> None:
        self._tokens = action.tokens
        self._end = Token("end", "}}", action.tokens[-1].column + len(action.tokens[-1].text))
        self._next = 0
        self._depth = 0

    def action(self) -> Node:
        """The action's tree. Raises :class:`ExpressionError` for what is not Go or not translated."""
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
