"""A compiled expression over the payload, written out as code for a loop of processors."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final, cast

from conduit_dagster.expressions.python.allow_list import nodes_below
from conduit_dagster.payload_code import AFTER, PayloadCode

_DEPTH: Final = 60
"""Depth beyond which writing a tree out could exceed Python's recursion limit."""
_IS_DOCUMENT: Final = ast.dump(ast.parse("after.__class__ is type_dict", mode="eval").body)


def code_of(body: ast.expr, scope: Mapping[str, Any]) -> PayloadCode | None:
    """Return a guarded expression as code; None if it can't be written out. Changes ``body``.

    ``scope``: everything that it can access.
    """
    if nodes_below(body, _DEPTH):
        return None
    inlined = _Inline().visit(body)
    names = {node.id for node in ast.walk(inlined) if isinstance(node, ast.Name)}
    source = ast.unparse(inlined)
    try:
        ast.parse(source, mode="eval")
    except SyntaxError:
        return None  # a tree may be more than its text can say
    return PayloadCode(source, {name: scope[name] for name in names & scope.keys()})


class _Inline(ast.NodeTransformer):
    """``record.after`` becomes ``after``, which need not be a document: other payloads are left to the function."""

    def visit_Slice(self, node: ast.Slice) -> ast.expr:
        # RestrictedPython leaves it as an argument of a call, which has no text
        ends = (node.lower, node.upper, node.step)
        made = [ast.Constant(None) if end is None else cast(ast.expr, self.visit(end)) for end in ends]
        return ast.Call(ast.Name("slice", ast.Load()), cast("list[ast.expr]", made), [])

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        made = cast(ast.IfExp, self.generic_visit(node))
        return made.body if ast.dump(made.test) == _IS_DOCUMENT else made

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        is_part = isinstance(node.value, ast.Name) and node.value.id == "record"
        return ast.Name(AFTER, ast.Load()) if is_part else cast(ast.expr, self.generic_visit(node))
