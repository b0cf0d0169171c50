"""Check of texts such as ``'now'``: Spark puts the current time wherever it turns a constant text into a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from conduit_dagster.processors.common.spark_sql.column_types import SqlTextError
from conduit_dagster.processors.common.spark_sql.text import Text
from conduit_dagster.spark.sql.query import ColumnType

_CLOCK = re.compile(r"\s*(now|today|tomorrow|yesterday)\b.*", re.IGNORECASE | re.DOTALL)
_FIX = (
    "set the time before, in field.set, by the expression now; as text it may be returned, compared with text, and "
    "given to functions of texts"
)


def check_clock_text(text: Text, columns: Mapping[str, ColumnType]) -> None:
    """Raise :class:`SqlTextError` for a text that Spark may take for the current time: one not plainly used as text."""
    from sqlglot import exp

    uses = _Uses(text, columns)
    for tree in [*text.items, *([text.where] if text.where is not None else [])]:
        for literal in tree.find_all(exp.Literal, exp.RawString):
            if _is_string(literal) and _CLOCK.fullmatch(literal.name) and not uses.stays_text(literal):
                message = f"{literal.name} gives another time at each evaluation"
                raise SqlTextError(message, _FIX, text.place_of_string(literal.name))


class _Uses:
    def __init__(self, text: Text, columns: Mapping[str, ColumnType]) -> None:
        self._text, self._columns = text, columns

    def stays_text(self, node: Any) -> bool:
        """Return whether no expression around a constant text can turn it into a time."""
        from sqlglot import exp

        parent = node.parent
        if isinstance(parent, exp.Select):
            return True
        if isinstance(parent, exp.Paren | exp.Alias):
            return self.stays_text(parent)
        if isinstance(parent, exp.If) and isinstance(parent.parent, exp.Case):
            # CASE operand WHEN node, or WHEN condition THEN node
            operand = parent.parent.this
            return self._no_times([operand]) if node is parent.this else self.stays_text(parent)
        if isinstance(parent, exp.Predicate):
            return self._no_times(parent.iter_expressions())
        choices = list(_choices(parent))
        is_choice = any(choice is node for choice in choices) and self._no_times(choices)
        # behind a column it is no constant any more
        return (is_choice or _takes_text(parent)) and (bool(parent.find(exp.Column)) or self.stays_text(parent))

    def _no_times(self, nodes: Iterable[Any]) -> bool:
        return all(node is not None and self._is_no_time(node) for node in nodes)

    def _is_no_time(self, node: Any) -> bool:
        """Return whether an expression certainly gives no date or timestamp, nor holds one."""
        from sqlglot import exp

        if isinstance(node, exp.Column):
            names = [part.name for part in self._text.path(node)]
            return not re.search("date|timestamp", repr(self._columns.get(names[0], "timestamp")))
        if isinstance(node, exp.Paren | exp.Bracket | exp.Dot):
            return self._is_no_time(node.this)
        if choices := list(_choices(node)):
            return self._no_times(choices)
        return isinstance(node, exp.Literal | exp.RawString | exp.Null) or _takes_text(node)


def _is_string(literal: Any) -> bool:
    from sqlglot import exp

    return isinstance(literal, exp.RawString) or literal.is_string


def _choices(node: Any) -> Iterator[Any]:
    """Iterate over the expressions of which an expression returns one, all of one type."""
    from sqlglot import exp

    if isinstance(node, exp.Case):
        yield from node.args["ifs"]
    if isinstance(node, exp.Coalesce | exp.Nullif):
        yield from node.iter_expressions()
    if isinstance(node, exp.Case | exp.If):
        yield from (node.args[key] for key in ("true", "false", "default") if node.args.get(key) is not None)


def _takes_text(node: Any) -> bool:
    """Return whether it is a function that takes texts, returns no time, and leaves its texts as they are."""
    from sqlglot import exp

    functions = (
        exp.ArrayToString, exp.Bracket, exp.Concat, exp.ConcatWs, exp.Contains, exp.DPipe, exp.EndsWith, exp.Length,
        exp.Lower, exp.RegexpExtract, exp.RegexpReplace, exp.RegexpSplit, exp.Replace, exp.StartsWith, exp.StrPosition,
        exp.Substring, exp.Trim, exp.Upper,
    )  # fmt: skip
    return isinstance(node, functions)
