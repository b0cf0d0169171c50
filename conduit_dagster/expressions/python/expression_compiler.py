"""Compiler from the text of a Python expression to a function of one record."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from typing import Any, cast

from RestrictedPython.transformer import RestrictingNodeTransformer

from conduit_dagster.expressions.compiled import PARTS, Clock, Compiled, ExpressionError, compiled
from conduit_dagster.expressions.python.allow_list import ExpressionChecker, ExpressionText
from conduit_dagster.expressions.python.expression_functions import (
    AS_THEY_ARE,
    FUNCTIONS,
    METHODS,
    TYPES,
    canonical,
    digest,
    joined,
    json_value,
    search,
)
from conduit_dagster.expressions.python.guards import GUARDS, WorkBudget

_GUARDED: dict[type[ast.operator], str] = {ast.Add: "add", ast.Mult: "multiply", ast.Mod: "remainder"}
_GLOBALS: dict[str, Any] = {
    **GUARDS,
    **{f"function_{name}": function.call for name, function in FUNCTIONS.items()},
    **{f"method_{name}": method.call for name, method in METHODS.items()},
    **{f"type_{name}": kind for name, kind in TYPES.items()},
    "canonical": canonical,
    "digest": digest,
    "joined": joined,
    "position_text": str,
    "types_as_they_are": AS_THEY_ARE,
}


def _call(name: str, *arguments: ast.expr, keywords: list[ast.keyword] | None = None) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), keywords or [])


class Guard(ast.NodeTransformer):
    """The first pass. ``globals`` is all that the generated code can access."""

    def __init__(self) -> None:
        self.globals: dict[str, Any] = dict(_GLOBALS)
        self._loop: str | None = None

    def guarded(self, node: ast.expr) -> ast.expr:
        """Return ``node`` with its guards."""
        return cast(ast.expr, self.visit(node))

    def _paid(self, node: ast.expr) -> ast.expr:
        return _call("charge", node) if self._loop is not None else node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Rename a loop variable so that it cannot clash with our names; keep a part of the record."""
        if node.id == self._loop:
            return ast.copy_location(ast.Name(f"item_{node.id}", node.ctx), node)
        return self._paid(node)

    def _base(self, node: ast.expr) -> ast.expr:
        bare = isinstance(node, ast.Name) and node.id != self._loop
        return node if bare else self.guarded(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Charge a field; RestrictedPython adds its guard."""
        return self._paid(ast.copy_location(ast.Attribute(self._base(node.value), node.attr, node.ctx), node))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Charge a field, an index or a slice; RestrictedPython adds its guard."""
        made = ast.Subscript(self._base(node.value), self.guarded(node.slice), node.ctx)
        return self._paid(ast.copy_location(made, node))

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Guard an operator if it could build something large."""
        left, right = self.guarded(node.left), self.guarded(node.right)
        name = _GUARDED.get(type(node.op))
        if name is None or _is_safe(node):
            return self._paid(ast.BinOp(left, node.op, right))
        return self._paid(_call(name, left, right))

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Guard a comparison: inside a loop, only scalars may be compared."""
        operands = [self.guarded(operand) for operand in (node.left, *node.comparators)]
        if self._loop is not None:
            searched = [False, *(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops)]
            operands = [o if s else _call("scalar", o) for o, s in zip(operands, searched, strict=True)]
        return ast.Compare(operands[0], node.ops, operands[1:])

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        """Turn an f-string into a call, so that raw data and lists print as they do with ``str``."""
        parts = [self.guarded(p.value if isinstance(p, ast.FormattedValue) else p) for p in node.values]
        return self._paid(_call("joined", *parts))

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        """Meter a loop: it is charged for what it touches."""
        return ast.ListComp(*self._scoped(node))

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.expr:
        """Meter a loop: it is charged for what it touches."""
        return ast.GeneratorExp(*self._scoped(node))

    def _scoped(self, node: ast.ListComp | ast.GeneratorExp) -> tuple[ast.expr, list[ast.comprehension]]:
        loop = node.generators[0]
        source = self.guarded(loop.iter)
        self._bind_meter()
        self._loop = cast(ast.Name, loop.target).id
        made = [self.guarded(part) for part in (loop.target, node.elt, *loop.ifs)]
        self._loop = None
        return made[1], [ast.comprehension(made[0], source, made[2:], 0)]

    def _bind_meter(self) -> None:
        if "charge" not in self.globals:
            meter = WorkBudget()
            self.globals |= {"charge": meter.charge, "_getiter_": meter.iterate}

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Turn a call into a call of one of our functions."""
        if isinstance(node.func, ast.Attribute):
            arguments = [self.guarded(argument) for argument in (node.func.value, *node.args)]
            return self._paid(_call(f"method_{node.func.attr}", *arguments))
        return self._paid(self._function(node, cast(ast.Name, node.func).id))

    def _function(self, node: ast.Call, name: str) -> ast.expr:
        if name == "isinstance":
            return _call("function_isinstance", self.guarded(node.args[0]), _types(node.args[1]))
        if name == "regex":
            return _call(self._pattern(node.args[0]), self.guarded(node.args[1]))
        arguments = [self.guarded(argument) for argument in node.args]
        if name == "hash":
            return _call("digest", self._paid(_call("canonical", *arguments)))
        keywords = [ast.keyword(keyword.arg, self.guarded(keyword.value)) for keyword in node.keywords]
        return _call(f"function_{name}", *arguments, keywords=keywords)

    def _pattern(self, node: ast.expr) -> str:
        name = f"pattern_{len(self.globals)}"
        self.globals[name] = search(cast(str, cast(ast.Constant, node).value))
        return name


def _types(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Tuple):
        return ast.Tuple([_types(kind) for kind in node.elts], ast.Load())
    return ast.Name(f"type_{cast(ast.Name, node).id}", ast.Load())


def _is_safe(node: ast.BinOp) -> bool:
    """Return whether an operand is a literal number, so that Python itself refuses text and lists."""
    left, right = _number(node.left), _number(node.right)
    if isinstance(node.op, ast.Add):
        return left is not None or right is not None
    if isinstance(node.op, ast.Mod):
        return left is not None
    return float in (left, right)


def _number(node: ast.expr) -> type | None:
    kind = type(node.value) if isinstance(node, ast.Constant) else None
    return kind if kind in (int, float) else None


class Bind(ast.NodeTransformer):
    """The second pass, after RestrictedPython: ``after`` becomes ``record.after``.

    The most common guards are inlined: a call costs as much as the work of most of them.
    """

    def __init__(self) -> None:
        self._names = 0
        self._loops = 0

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace a name by its part of the record; a position is converted to text."""
        if node.id not in PARTS:
            return node
        part = ast.Attribute(ast.Name("record", ast.Load()), node.id, ast.Load())
        return _call("position_text", part) if node.id == "position" else part

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        """Visit a loop, in which no ``:=`` may be generated."""
        return self._looped(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.expr:
        """Visit a loop, in which no ``:=`` may be generated."""
        return self._looped(node)

    def _looped(self, node: ast.expr) -> ast.expr:
        self._loops += 1
        made = cast(ast.expr, self.generic_visit(node))
        self._loops -= 1
        return made

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Replace a guard by one that knows which part of the record it reads, inlined where possible."""
        name, first = cast(ast.Name, node.func).id, node.args[0] if node.args else None
        guard = {"_getattr_": "field_of_", "_getitem_": "item_of_"}.get(name)
        if guard and isinstance(first, ast.Name) and first.id in PARTS:
            node.func = ast.Name(f"{guard}{first.id}", ast.Load())
            return self._inlined_field(cast(ast.Call, self.generic_visit(node)))
        made = cast(ast.Call, self.generic_visit(node))
        return self._inlined_product(made) if name == "multiply" and not self._loops else made

    def _inlined_field(self, call: ast.Call) -> ast.expr:
        """Inline ``record.after.get(name)`` for the case that the part is a document, as it nearly always is."""
        part, name = call.args
        got = ast.Call(ast.Attribute(part, "get", ast.Load()), [name], [])
        return ast.IfExp(_is_a(part, "dict"), got, call)

    def _inlined_product(self, call: ast.Call) -> ast.expr:
        """Inline a float times a literal integer: it repeats nothing, and the product has a fixed size."""
        left, right = call.args
        if not isinstance(right, ast.Constant) or right.value.__class__ is not int:
            return call
        named, value = self.named(left)
        call.args[0] = value
        return ast.IfExp(_is_a(named, "float"), ast.BinOp(value, ast.Mult(), right), call)

    def named(self, node: ast.expr) -> tuple[ast.expr, ast.expr]:
        """Return ``node`` bound to a new name with ``:=``, and that name for later use."""
        self._names += 1
        name = f"value_{self._names}"
        return ast.NamedExpr(ast.Name(name, ast.Store()), node), ast.Name(name, ast.Load())

    def as_json(self, node: ast.expr) -> ast.expr:
        """Convert to a value that JSON can hold; a finite float, tested by a cheap multiplication, is kept."""
        named, value = self.named(node)
        zero = ast.Compare(ast.BinOp(value, ast.Mult(), ast.Constant(0.0)), [ast.Eq()], [ast.Constant(0.0)])
        finite = ast.BoolOp(ast.And(), [_is_a(named, "float"), zero])
        kind = ast.Attribute(value, "__class__", ast.Load())
        plain = ast.Compare(kind, [ast.In()], [ast.Name("types_as_they_are", ast.Load())])
        return ast.IfExp(ast.BoolOp(ast.Or(), [finite, plain]), value, _call("json_value", value))


def _is_a(node: ast.expr, kind: str) -> ast.expr:
    attribute = ast.Attribute(node, "__class__", ast.Load())
    return ast.Compare(attribute, [ast.Is()], [ast.Name(f"type_{kind}", ast.Load())])


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
