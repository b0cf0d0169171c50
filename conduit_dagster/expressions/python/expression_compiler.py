"""Compiler from the text of a Python expression to a function of one record."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from typing import Any

from RestrictedPython.transformer import RestrictingNodeTransformer

from conduit_dagster.expressions.compiled import Clock, Compiled, ExpressionError, compiled
from conduit_dagster.expressions.python.allow_list import ExpressionChecker, ExpressionText
from conduit_dagster.expressions.python.expression_functions import json_value
from conduit_dagster.expressions.python.translate import Bind, Guard

Wrap = Callable[[Bind, ast.expr], ast.expr]
_one_at_a_time = threading.Lock()
"""Lock for compiling: Python 3.11 counts the depth of trees across all threads and fails if two build one at once."""


def python_condition(text: str, clock: Clock) -> Compiled:
    """Compile a condition: true if the expression's value is truthy in Python."""
    return _compile(text, clock, _truth)


def python_value(text: str, clock: Clock) -> Compiled:
    """Compile to a value that JSON can hold; raw data stays ``bytes``. It may be a part of the record, not a copy."""
    return _compile(text, clock, Bind.as_json)


def _truth(bind: Bind, body: ast.expr) -> ast.expr:
    del bind
    if isinstance(body, (ast.Compare, ast.UnaryOp)) and not isinstance(getattr(body, "op", None), (ast.USub, ast.UAdd)):
        return body
    return ast.IfExp(body, ast.Constant(True), ast.Constant(False))


def _compile(text: str, clock: Clock, wrap: Wrap) -> Compiled:
    with _one_at_a_time:
        return _made(text, clock, wrap)


def _made(text: str, clock: Clock, wrap: Wrap) -> Compiled:
    source = ExpressionText(text)
    body = source.parse().body
    checker = ExpressionChecker(source)
    checker.check(body)
    guard = Guard()
    bind = Bind()
    body = bind.visit(_restricted(guard.guarded(body)))
    scope = guard.globals | {"function_now": clock.text, "function_now_ns": clock.nanoseconds}
    return compiled(_function(wrap(bind, body), scope), checker.names)


def _restricted(body: ast.expr) -> ast.expr:
    """Apply RestrictedPython's own rules: a second barrier in case our allow-list has a hole."""
    errors: list[str] = []
    tree = ast.fix_missing_locations(ast.Expression(body))
    RestrictingNodeTransformer(errors, [], {}).visit(tree)
    if errors:
        raise ExpressionError(f"not allowed in an expression: {errors[0]}", fix="write a field as an item: after['x']")
    return tree.body


def _function(body: ast.expr, scope: dict[str, Any]) -> Callable[..., Any]:
    arguments = ast.arguments([], [ast.arg("record")], None, [], [], None, [])
    tree = ast.fix_missing_locations(ast.Expression(ast.Lambda(arguments, body)))
    scope |= {"__builtins__": {}, "json_value": json_value}
    return eval(compile(tree, "<expression>", "eval"), scope)
