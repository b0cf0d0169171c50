"""Upper bound of the values that an expression can build, from its syntax.

Each operation has its own limit, so an expression with few operations needs no other, and pays nothing. An expression
with many operations, or with many references to the record in the values that it builds, is metered: each evaluation
has a budget (``limits.MakingBudget``).
"""

from __future__ import annotations

import ast
from typing import Final

from conduit_dagster.expressions import limits
from conduit_dagster.expressions.python.expression_functions import FUNCTIONS, SELECTING

DISPLAYS: Final = (ast.List, ast.Tuple, ast.Dict)
_LOOPS: Final = (ast.ListComp, ast.GeneratorExp)
_LOOP_OPERATIONS = 2
_MAKING_FUNCTIONS = frozenset({"str", "sorted", "hash"})
_ITEM_WEIGHT = 4
_SHORT_TEXT = 16


def operations(node: ast.AST) -> int:
    """Return the number of operations in ``node`` that build text or a list; a chain of ``+`` is one, a loop is two."""
    found = _makes(node)
    for child in ast.iter_child_nodes(node):
        found += operations(child)
        if _is_sum(node) and _is_sum(child):
            found -= 1
    return found


def _makes(node: ast.AST) -> int:
    if isinstance(node, _LOOPS):
        return _LOOP_OPERATIONS
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            return node.func.attr not in SELECTING
        return isinstance(node.func, ast.Name) and node.func.id in _MAKING_FUNCTIONS
    return isinstance(node, (ast.JoinedStr, ast.Slice)) or _is_sum(node)


def _is_sum(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)


def is_metered(node: ast.AST) -> bool:
    """Return whether an expression needs a budget for each evaluation."""
    return operations(node) > limits.OPERATIONS or _references(node, within=False) > limits.REFERENCES


def _references(node: ast.AST, *, within: bool) -> int:
    """Return the number of names in displays and sums, whose values contain or repeat the named ones."""
    if isinstance(node, ast.Name):
        return within and node.id not in FUNCTIONS
    within = within or isinstance(node, DISPLAYS) or _is_sum(node)
    return sum(_references(child, within=within) for child in ast.iter_child_nodes(node))


def is_part_of_record(node: ast.AST, loop: str | None = None) -> bool:
    """Return whether the value is not built: a literal, or a part of the record or of the loop's item ``loop``.

    With ``loop``, parts of the record do not count: values that each iteration repeats must be charged.
    """
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Name):
        return loop is None or node.id == loop
    if isinstance(node, ast.Attribute):
        return is_part_of_record(node.value, loop)
    if isinstance(node, ast.Subscript):
        return not isinstance(node.slice, ast.Slice) and is_part_of_record(node.value, loop)
    return False


def loop_weight(node: ast.AST) -> int:
    """Return the minimum work of one iteration: long literals, and items of the lists and objects it builds."""
    if isinstance(node, ast.Constant):
        return len(node.value) if isinstance(node.value, str) and len(node.value) > _SHORT_TEXT else 0
    found = sum(map(loop_weight, ast.iter_child_nodes(node)))
    if isinstance(node, DISPLAYS):
        items = node.values if isinstance(node, ast.Dict) else node.elts
        found += sum(1 if isinstance(item, ast.Constant) else _ITEM_WEIGHT for item in items)
    return found
