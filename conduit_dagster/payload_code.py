"""Python code that changes payloads: the processors of a chain become one loop."""

from __future__ import annotations

import ast
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from conduit_dagster.lazy_property import lazy_property

AFTER: Final = "after"
"""The variable that holds a record's payload."""
DROP: Final = "drop"
"""The function whose call, as a statement outside any loop, filters the record out."""

SYNTAX_TREES: Final = threading.Lock()
"""Held while a syntax tree is built: Python 3.11 counts their depth across threads, and fails if two build one."""


class PayloadCode(NamedTuple):
    """Statements that change the payload of one record, the variable ``after``.

    They read and change nothing else of the record. For a payload that they don't fit they raise, before they have
    changed anything: whoever runs them then treats that record in its own way.
    """

    source: str
    names: Mapping[str, Any]
    """Everything that the statements use, by name; no built-in function is in scope."""


DROPPING: Final = PayloadCode(f"{DROP}()", {})
"""Code that filters every record out."""


def conditional(condition: PayloadCode, code: PayloadCode, *, otherwise: bool = False) -> PayloadCode:
    """Return code that runs only where the condition, an expression, is true; with ``otherwise`` where it is false."""
    test, body = _separate(condition.source, "if"), _separate(code.source, "then")
    head = f"if not ({test}):" if otherwise else f"if {test}:"
    names = {**_own_names(condition.names, "if"), **_own_names(code.names, "then")}
    return PayloadCode("\n".join([head, *(f"    {line}" for line in body.split("\n"))]), names)


class NoFitError(Exception):
    """Raised by payload code for a payload that it doesn't fit."""


class Unfit(NamedTuple):
    """The record at which a loop stopped, for the caller to handle; the loop continues after it."""

    code: int
    """Index of the code that raised; those before it have changed the payload."""
    after: Any
    """The payload, as changed so far."""


_OVER_PAYLOADS = """\
def loop(rest, drop, add):
    after = None
    try:
        for after in rest:
{body}
            add(after)
    except Exception as error:
        return after, error.__traceback__.tb_lineno
"""
_OVER_RECORDS = """\
def loop(rest, drop):
    record = after = None
    try:
        for record in rest:
            after = record.after
{body}
            record.after = after
    except Exception as error:
        record.after = after
        return after, error.__traceback__.tb_lineno
"""
_INDENT = " " * 12
_Stop = tuple[Any, int] | None
Drop = Callable[[int], None]


class PayloadChain:
    """Several codes as one loop, which costs less than a loop for each.

    Both methods go on with an iterator until it ends, and then return None, or until a code raises. Call them again
    with the same iterator to continue after that record. ``drop`` is called with the index of the code that filters a
    record out; that record is the last one taken from the iterator.
    """

    def __init__(self, codes: Sequence[PayloadCode]) -> None:
        self._codes = codes
        self._behind: dict[int, PayloadChain] = {}

    def behind(self, code: int) -> PayloadChain:
        """Return the chain of the codes behind one of them."""
        if code not in self._behind:
            self._behind[code] = PayloadChain(self._codes[code + 1 :])
        return self._behind[code]

    def over_payloads(self, rest: Iterator[Any], drop: Drop, add: Callable[[Any], None]) -> Unfit | None:
        """Pass each changed payload to ``add``."""
        loop, first_lines = self._payload_loop
        return _unfit(loop(rest, drop, add), first_lines)

    def over_records(self, rest: Iterator[Any], drop: Drop) -> Unfit | None:
        """Change the payload of each record in place."""
        loop, first_lines = self._record_loop
        return _unfit(loop(rest, drop), first_lines)

    @lazy_property
    def _payload_loop(self) -> tuple[Callable[..., _Stop], list[int]]:
        return self._compiled(_OVER_PAYLOADS)

    @lazy_property
    def _record_loop(self) -> tuple[Callable[..., _Stop], list[int]]:
        return self._compiled(_OVER_RECORDS)

    def _compiled(self, template: str) -> tuple[Callable[..., _Stop], list[int]]:
        """Return the loop, and the line at which each code begins: it tells which one raised, at no cost."""
        lines, first_lines = list[str](), list[int]()
        scope: dict[str, Any] = {"__builtins__": {"Exception": Exception}}
        begin = template[: template.index("{body}")].count("\n") + 1
        for number, code in enumerate(self._codes):
            first_lines.append(begin + len(lines))
            lines += [f"{_INDENT}{line}" for line in _separate(code.source, str(number), number).split("\n")]
            scope |= _own_names(code.names, str(number))
        exec(compile(template.format(body="\n".join(lines)), "<payload code>", "exec"), scope)
        return cast(Callable[..., _Stop], scope["loop"]), first_lines


def _unfit(stop: _Stop, first_lines: list[int]) -> Unfit | None:
    if stop is None:
        return None
    after, line = stop
    return Unfit(bisect_right(first_lines, line) - 1, after)


def _own(name: str, suffix: str) -> str:
    return f"{name}_{suffix}"


def _own_names(names: Mapping[str, Any], suffix: str) -> dict[str, Any]:
    return {_own(name, suffix): value for name, value in names.items()}


def _separate(source: str, suffix: str, number: int | None = None) -> str:
    """Return a code's statements with names of their own, so that the codes of a chain can't reach one another's.

    ``number``: the code's place in its chain, once it has one.
    """
    with SYNTAX_TREES:
        tree = _Rename(suffix).visit(ast.parse(source))
        return ast.unparse(tree if number is None else ast.fix_missing_locations(_Drops(number).visit(tree)))


class _Rename(ast.NodeTransformer):
    def __init__(self, suffix: str) -> None:
        self._suffix = suffix

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return node if node.id in (AFTER, DROP) else ast.Name(_own(node.id, self._suffix), node.ctx)


class _Drops(ast.NodeTransformer):
    """``drop()`` becomes a call with the code's number, and the loop goes on with the next record."""

    def __init__(self, number: int) -> None:
        self._number = number

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | list[ast.stmt]:
        call = node.value
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == DROP):
            return node
        return [ast.Expr(ast.Call(call.func, [ast.Constant(self._number)], [])), ast.Continue()]
