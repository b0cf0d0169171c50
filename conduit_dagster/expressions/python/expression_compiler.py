"""Compiler from the text of a Python expression to a function of one record."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, cast

from RestrictedPython.transformer import RestrictingNodeTransformer

from conduit_dagster.expressions import limits
from conduit_dagster.expressions.compiled import PARTS, RAW_PARTS, Clock, Compiled, ExpressionError, compiled
from conduit_dagster.expressions.limits import MakingBudget, measured, weighed
from conduit_dagster.expressions.python.allow_list import ExpressionChecker, ExpressionText
from conduit_dagster.expressions.python.expression_code import code_of
from conduit_dagster.expressions.python.expression_functions import (
    AS_THEY_ARE,
    FUNCTIONS,
    LONG_ARGUMENTS,
    METHODS,
    PARTING,
    SELECTING,
    SHORT_ARGUMENT,
    TYPES,
    canonical,
    digest,
    joined,
    json_value,
    search,
)
from conduit_dagster.expressions.python.growth import is_metered, is_part_of_record, loop_weight, operations
from conduit_dagster.expressions.python.guards import GUARDS, WorkBudget
from conduit_dagster.payload_code import AFTER, SYNTAX_TREES
from conduit_dagster.record import Record

_GUARDED: dict[type[ast.operator], str] = {ast.Add: "add", ast.Mult: "multiply", ast.Mod: "remainder"}
_COMPARING = frozenset({"min", "max", "sorted"})
_UNMEASURED = 2
"""Maximum number of operations whose values may be converted to text unmeasured: each has its own limit."""
_GLOBALS: dict[str, Any] = {
    **GUARDS,
    **{f"function_{name}": function.call for name, function in FUNCTIONS.items()},
    **{f"method_{name}": method.call for name, method in METHODS.items()},
    **{f"bounded_{name}": call for name, call in LONG_ARGUMENTS.items()},
    **{f"type_{name}": kind for name, kind in TYPES.items()},
    "canonical": canonical,
    "digest": digest,
    "joined": joined,
    "measured": measured,
    "weighed": weighed,
    "position_text": str,
    "types_as_they_are": AS_THEY_ARE,
}


def _call(name: str, *arguments: ast.expr, keywords: list[ast.keyword] | None = None) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), keywords or [])


class Guard(ast.NodeTransformer):
    """The first pass. ``globals`` is everything that the generated code can access.

    A metered expression charges the values that it builds to ``made``, the budget of the evaluation.
    """

    def __init__(self, *, metered: bool) -> None:
        self.globals: dict[str, Any] = dict(_GLOBALS)
        self._metered = metered
        self._loop: str | None = None
        self._kept = False
        """Whether the node's value becomes a part of a loop's result."""
        self._inner_sums: set[ast.expr] = set()

    def guarded(self, node: ast.expr, *, kept: bool = False) -> ast.expr:
        """Return ``node`` with its guards. ``kept``: its value becomes a part of a loop's result."""
        outer, self._kept = self._kept, kept
        made = cast(ast.expr, self.visit(node))
        self._kept = outer
        return made

    def _paid(self, node: ast.expr, made: ast.expr, *, making: bool = False) -> ast.expr:
        """Charge ``made``, the result of ``node``: always in a loop, elsewhere only if the expression is metered."""
        if self._loop is None:
            return _call("made", made) if making and self._metered else made
        deep = self._kept and (self._metered or not is_part_of_record(node, self._loop))
        return _call("charge_deep" if deep else "charge", made)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Rename a loop variable so that it can't clash with our names; keep a part of the record."""
        if node.id != self._loop:
            return self._paid(node, node)
        item = ast.copy_location(ast.Name(f"item_{node.id}", node.ctx), node)
        return _call("charge_deep", item) if self._kept and self._metered else item

    def _base(self, node: ast.expr) -> ast.expr:
        bare = isinstance(node, ast.Name) and node.id != self._loop
        return node if bare else self.guarded(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Charge a field; RestrictedPython adds its guard."""
        return self._paid(node, ast.copy_location(ast.Attribute(self._base(node.value), node.attr, node.ctx), node))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Charge a field, an index or a slice; RestrictedPython adds its guard."""
        made = ast.Subscript(self._base(node.value), self.guarded(node.slice), node.ctx)
        return self._paid(node, ast.copy_location(made, node), making=isinstance(node.slice, ast.Slice))

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Guard an operator if it could build something large, or take long in a loop."""
        is_sum = isinstance(node.op, ast.Add)
        if is_sum:
            self._inner_sums |= {node.left, node.right}
        left, right = self.guarded(node.left), self.guarded(node.right)
        name = _GUARDED.get(type(node.op))
        if self._loop is not None and isinstance(node.op, ast.FloorDiv):
            name = "quotient"
        safe = name is None or _is_safe(node)
        made = ast.BinOp(left, node.op, right) if safe else _call(cast(str, name), left, right)
        return self._paid(node, made, making=is_sum and not safe and node not in self._inner_sums)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Guard a comparison: raw data is not compared, and inside a loop only scalars are."""
        sides = (node.left, *node.comparators)
        operands = [self.guarded(side) for side in sides]
        if not any(isinstance(side, ast.Constant) and side.value is None for side in sides):
            operands = [_compared(*pair) for pair in zip(sides, operands, strict=True)]
        if self._loop is not None:
            searched = [False, *(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops)]
            operands = [o if s else _call("scalar", o) for o, s in zip(operands, searched, strict=True)]
        return ast.Compare(operands[0], node.ops, operands[1:])

    def _display(self, node: ast.expr) -> ast.expr:
        """Charge a list, a tuple or an object with all its contents."""
        # in a loop its parts are charged
        made = cast(ast.expr, self.generic_visit(node))
        return _call("made", made) if self._metered and self._loop is None else made

    visit_List = visit_Tuple = visit_Dict = _display  # noqa: N815  # the names that ast calls

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        """Turn an f-string into a call, so that raw data and lists print as they do with ``str``."""
        parts = [self._printed(p.value if isinstance(p, ast.FormattedValue) else p) for p in node.values]
        return self._paid(node, _call("joined", *parts), making=True)

    def _printed(self, node: ast.expr) -> ast.expr:
        """Measure the value that is converted to text, unless it can be at most a few times as large as the record."""
        # counted first: visiting changes the tree
        plain = is_part_of_record(node) or not (self._metered or operations(node) > _UNMEASURED)
        made = self.guarded(node)
        return made if plain else _call("measured", made)

    def _scoped(self, node: ast.ListComp | ast.GeneratorExp) -> ast.expr:
        """Meter a loop: it is charged for every item it touches."""
        loop = node.generators[0]
        source = self.guarded(loop.iter)
        weight = sum(map(loop_weight, (node.elt, *loop.ifs)))
        if weight > limits.LOOP_WEIGHT:
            source = _call("weighed", source, ast.Constant(weight))
        self._bind_meter()
        self._loop = cast(ast.Name, loop.target).id
        target, *conditions = [self.guarded(part) for part in (loop.target, *loop.ifs)]
        element = self.guarded(node.elt, kept=True)
        self._loop = None
        return type(node)(element, [ast.comprehension(target, source, conditions, 0)])

    visit_ListComp = visit_GeneratorExp = _scoped  # noqa: N815  # the names that ast calls

    def _bind_meter(self) -> None:
        if "charge" not in self.globals:
            meter = WorkBudget()
            self.globals |= {
                "charge": meter.charge,
                "charge_deep": meter.charge_deep,
                "charge_parts": meter.charge_parts,
                "_getiter_": meter.iterate,
            }

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Turn a call into a call of one of our functions."""
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func)
        name = cast(ast.Name, node.func).id
        return self._paid(node, self._function(node, name), making=name in ("str", "sorted"))

    def _method(self, node: ast.Call, called: ast.Attribute) -> ast.expr:
        arguments = [self.guarded(argument) for argument in (called.value, *node.args)]
        bounded = called.attr in LONG_ARGUMENTS and any(map(_may_be_long, node.args[:1]))
        made = _call(f"{'bounded' if bounded else 'method'}_{called.attr}", *arguments)
        if self._loop is not None and called.attr in PARTING:
            made = _call("charge_parts", made)
        return self._paid(node, made, making=called.attr not in SELECTING)

    def _function(self, node: ast.Call, name: str) -> ast.expr:
        if name == "isinstance":
            return _call("function_isinstance", self.guarded(node.args[0]), _types(node.args[1]))
        if name == "regex":
            return _call(self._pattern(node.args[0]), self.guarded(node.args[1]))
        if name == "hash":
            return _call("digest", self._paid(node, _call("canonical", self._printed(node.args[0])), making=True))
        if name == "str":
            return _call("function_str", self._printed(node.args[0]))
        # lists are compared item by item: in a loop they are charged like kept values
        kept = name in _COMPARING and self._loop is not None
        arguments = [self.guarded(argument, kept=kept) for argument in node.args]
        keywords = [ast.keyword(keyword.arg, self.guarded(keyword.value)) for keyword in node.keywords]
        return _call(f"function_{name}", *arguments, keywords=keywords)

    def _pattern(self, node: ast.expr) -> str:
        name = f"pattern_{len(self.globals)}"
        self.globals[name] = search(cast(str, cast(ast.Constant, node).value))
        return name


def _may_be_long(node: ast.expr) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    return not (isinstance(value, str) and len(value) <= SHORT_ARGUMENT)


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

    def _looped(self, node: ast.expr) -> ast.expr:
        """Visit a loop, in which no ``:=`` may be generated."""
        self._loops += 1
        made = cast(ast.expr, self.generic_visit(node))
        self._loops -= 1
        return made

    visit_ListComp = visit_GeneratorExp = _looped  # noqa: N815  # the names that ast calls

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
        """Inline ``record.after.get(name)`` for a part that is a document, as it nearly always is."""
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


def _compared(side: ast.expr, operand: ast.expr) -> ast.expr:
    name = side.id if isinstance(side, ast.Name) else ""
    return _call(f"compared_{name}", operand) if name in RAW_PARTS else operand


def _is_a(node: ast.expr, kind: str) -> ast.expr:
    attribute = ast.Attribute(node, "__class__", ast.Load())
    return ast.Compare(attribute, [ast.Is()], [ast.Name(f"type_{kind}", ast.Load())])


Wrap = Callable[[Bind, ast.expr], ast.expr]


def python_condition(text: str, clock: Clock) -> Compiled:
    """Compile a condition: true if the expression's value is truthy in Python."""
    return _compile(text, clock, _truth)


def python_value(text: str, clock: Clock) -> Compiled:
    """Compile to a value that JSON can hold; raw data stays ``bytes``. It may be a part of the record, not a copy."""
    return _compile(text, clock, Bind.as_json)


def _truth(bind: Bind, body: ast.expr) -> ast.expr:
    del bind
    if isinstance(body, ast.Constant) and isinstance(body.value, str):
        # a file's own quotes and those of a shell are easily written both
        message = "the condition is a text in quotes: it is the same for every record"
        raise ExpressionError(message, 0, "leave out the quotes within it")
    if isinstance(body, (ast.Compare, ast.UnaryOp)) and not isinstance(getattr(body, "op", None), (ast.USub, ast.UAdd)):
        return body
    return ast.IfExp(body, ast.Constant(True), ast.Constant(False))


def _compile(text: str, clock: Clock, wrap: Wrap) -> Compiled:
    with SYNTAX_TREES:
        return _made(text, clock, wrap)


def _made(text: str, clock: Clock, wrap: Wrap) -> Compiled:
    source = ExpressionText(text)
    body = source.parse().body
    checker = ExpressionChecker(source)
    checker.check(body)
    metered = is_metered(body)
    guard = Guard(metered=metered)
    bind = Bind()
    body = bind.visit(_restricted(guard.guarded(body)))
    scope = guard.globals | {"function_now": clock.text, "function_now_ns": clock.nanoseconds}
    function = _function(wrap(bind, body), scope, metered=metered)
    if metered:
        return compiled(_with_budget(function), checker.names)
    return compiled(function, checker.names, code=code_of(body, scope) if checker.names <= {AFTER} else None)


def _restricted(body: ast.expr) -> ast.expr:
    """Apply RestrictedPython's own rules: a second barrier in case our allow-list has a hole."""
    errors: list[str] = []
    tree = ast.fix_missing_locations(ast.Expression(body))
    RestrictingNodeTransformer(errors, [], {}).visit(tree)
    if errors:
        raise ExpressionError(f"not allowed in an expression: {errors[0]}", fix="write a field as an item: after['x']")
    return tree.body


def _function(body: ast.expr, scope: dict[str, Any], *, metered: bool) -> Callable[..., Any]:
    names = [ast.arg("record"), *([ast.arg("made")] if metered else [])]
    arguments = ast.arguments([], names, None, [], [], None, [])
    tree = ast.fix_missing_locations(ast.Expression(ast.Lambda(arguments, body)))
    scope |= {"__builtins__": {}, "json_value": json_value}
    return eval(compile(tree, "<expression>", "eval"), scope)


def _with_budget(function: Callable[[Record, Any], Any]) -> Callable[[Record], Any]:
    def call(record: Record) -> Any:
        return function(record, MakingBudget().charge)

    return call
