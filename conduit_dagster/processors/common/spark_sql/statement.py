"""The setting ``query``, parsed and checked without Spark.

sqlglot only analyzes the text; Spark gets the text as written, with the columns' names replaced.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conduit_dagster.processors.common.spark_sql.column_types import SqlTextError
from conduit_dagster.processors.common.spark_sql.text import Text
from conduit_dagster.record import Record, copy_document
from conduit_dagster.spark.sql.query import ColumnType, SqlQuery, quoted

Part = Callable[[Any, Mapping[str, Any], dict[str, Any]], None]


class DocumentSelection:
    """Builder of new documents, with fields in the order of the query."""

    def __init__(self, items: Sequence[Item]) -> None:
        kept = Counter(item.source for item in items if isinstance(item, UnchangedColumn))
        whole = any(isinstance(item, Fields) for item in items)
        # a field selected twice is copied, so that a later change affects only one of the two
        self._parts = [_part(item, whole or kept[getattr(item, "source", "")] > 1) for item in items]
        self.reads_position = kept["_position"] > 0

    def of(self, record: Record, results: Mapping[str, Any]) -> dict[str, Any]:
        """Return the new document of a record whose ``after`` is a document."""
        made: dict[str, Any] = {}
        for part in self._parts:
            part(record, results, made)
        return made


def _part(item: Item, twice: bool) -> Part:
    match item:
        case Fields(without):
            return _fields(without)
        case UnchangedColumn(source, name):
            return _own(source, name) if source in PARTS else _kept(source, name, twice)
        case Computed(place, name, _):
            return _computed(f"o{place}", name)


def _fields(without: frozenset[str]) -> Part:
    def part(record: Any, results: Mapping[str, Any], made: dict[str, Any]) -> None:
        del results
        for name, value in record.after.items():
            if name not in without:
                made.setdefault(name, value)

    def whole(record: Any, results: Mapping[str, Any], made: dict[str, Any]) -> None:
        if made:
            part(record, results, made)
        else:
            made.update(record.after)

    return part if without else whole


def _kept(source: str, name: str, twice: bool) -> Part:
    def part(record: Any, results: Mapping[str, Any], made: dict[str, Any]) -> None:
        del results
        value = record.after.get(source)
        made[name] = copy_document({"": value})[""] if twice else value

    return part


def _own(source: str, name: str) -> Part:
    def part(record: Record, results: Mapping[str, Any], made: dict[str, Any]) -> None:
        del results
        if source == "_metadata":
            made[name] = dict(record.metadata)
        else:
            made[name] = record.operation if source == "_operation" else str(record.position)

    return part


def _computed(result: str, name: str) -> Part:
    def part(record: Any, results: Mapping[str, Any], made: dict[str, Any]) -> None:
        del record
        made[name] = results[result]

    return part


TABLE = "record"
PARTS: Mapping[str, ColumnType] = {"_metadata": ("map", "string"), "_operation": "string", "_position": "string"}
"""Parts of a record that a query may use besides its fields, with their types."""


@dataclass(frozen=True)
class Fields:
    """``*``: the record's fields unchanged, without the excepted ones."""

    without: frozenset[str]


@dataclass(frozen=True)
class UnchangedColumn:
    """A column selected unchanged: its value does not go through Spark."""

    source: str
    name: str


@dataclass(frozen=True)
class Computed:
    """An expression; ``place`` is the index of its result."""

    place: int
    name: str
    text: str


Item = Fields | UnchangedColumn | Computed


@dataclass(frozen=True)
class Statement:
    """A query that can be run."""

    items: Sequence[Item]
    where: str
    """The WHERE condition as written; empty without one."""
    used: Sequence[str]
    """Columns passed to Spark, in the order of the columns of ``query``."""
    query: SqlQuery | None
    """None if nothing has to be computed."""


def parse_statement(query: str, columns: Mapping[str, ColumnType]) -> Statement:
    """Parse a query over these columns. Raises :class:`SqlTextError`."""
    text = Text(query)
    _check_clock_text(text, {**columns, **PARTS})
    return _Reader(text, columns).statement()


class _Reader:
    def __init__(self, text: Text, columns: Mapping[str, ColumnType]) -> None:
        self._text, self._columns = text, {**columns, **PARTS}
        # the same text over the same columns gets the same name in every process
        told = repr((text.text, sorted(columns.items())))
        self._name = "q" + hashlib.blake2b(told.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
        self._used: dict[str, int] = {}
        self._outputs: list[str] = []

    def statement(self) -> Statement:
        text = self._text
        items = [self._item(tree, *span) for tree, span in zip(text.items, text.spans, strict=True)]
        self._check_names(items)
        where, condition = "", ""
        if text.where is not None:
            begin, end = text.where_span
            where, condition = text.text[begin:end], self._rewritten(text.where, begin, end)
        if not condition and not self._outputs:
            return Statement(items, "", (), None)
        kinds = tuple(self._columns[name] for name in self._used)
        return Statement(
            items,
            where,
            tuple(self._used),
            SqlQuery(self._name, kinds, condition, tuple(self._outputs), tuple(self._used)),
        )

    def _item(self, tree: Any, begin: int, end: int) -> Item:
        from sqlglot import exp

        star = tree.this if isinstance(tree, exp.Column) and isinstance(tree.this, exp.Star) else tree
        if isinstance(star, exp.Star):
            return self._fields(star, begin)
        if isinstance(tree, exp.Alias):
            return self._named(tree.this, tree.alias, begin, self._text.before_alias(begin, end))
        if isinstance(tree, exp.Column):
            return self._named(tree, tree.name, begin, end)
        shown = self._text.text[begin:end]
        raise SqlTextError(f"the column {shown[:60]} has no name", f"write {shown[:60]} AS a_name", begin)

    def _fields(self, star: Any, begin: int) -> Fields:
        if star.args.get("replace") or star.args.get("rename"):
            raise SqlTextError("a star takes EXCEPT only", "select an expression with the name behind the star", begin)
        without = star.args.get("except_") or star.args.get("except") or []
        return Fields(frozenset(one.name for one in without))

    def _named(self, tree: Any, name: str, begin: int, end: int) -> Item:
        from sqlglot import exp

        if isinstance(tree, exp.Column) and len(self._text.path(tree)) == 1:
            return UnchangedColumn(self._known(self._text.path(tree)[0]), name)
        written = self._text.text[begin:end]
        self._outputs.append(self._rewritten(tree, begin, end))
        return Computed(len(self._outputs) - 1, name, written)

    def _known(self, name: Any) -> str:
        if name.name in self._columns:
            return str(name.name)
        near = self._text.nearest(name.name, self._columns)
        fix = f"did you mean {near}? " if near else ""
        message = f"there is no column {name.name}"
        raise SqlTextError(
            message, f"{fix}name it with its type in columns: {name.name} STRING", self._text.start(name)
        )

    def _rewritten(self, tree: Any, begin: int, end: int) -> str:
        """Return the text from ``begin`` to ``end`` with each column replaced by its name in Spark."""
        from sqlglot import exp

        # the parser may put one column of the text into several places of the tree
        changes: set[tuple[int, int, str]] = set()
        for column in tree.find_all(exp.Column):
            first, root = self._text.parts(column)[0], self._text.path(column)[0]
            place = self._used.setdefault(self._known(root), len(self._used))
            named = f" AS {quoted(root.name)}" if self._text.is_unnamed_field(column) else ""
            changes.add((self._text.start(first), self._text.end(root), f"{self._name}.c{place}{named}"))
        made, done = "", begin
        for start, stop, instead in sorted(changes):
            made += self._text.text[done:start] + instead
            done = stop
        return made + self._text.text[done:end]

    def _check_names(self, items: Sequence[Item]) -> None:
        seen: set[str] = set()
        for item, (begin, _) in zip(items, self._text.spans, strict=True):
            name = "*" if isinstance(item, Fields) else item.name
            if name in seen:
                raise SqlTextError(f"{name} is selected twice", "give each column a name of its own", begin)
            seen.add(name)


_CLOCK = re.compile(r"\s*(now|today|tomorrow|yesterday)\b.*", re.IGNORECASE | re.DOTALL)
_FIX = (
    "set the time before, in field.set, by the expression now; as text it may be returned, compared with text, and "
    "given to functions of texts"
)


def _check_clock_text(text: Text, columns: Mapping[str, ColumnType]) -> None:
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
