"""A query's text: its parts and their offsets, and the check that it is one SELECT over single records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

from conduit_dagster.processors.common.spark_sql.column_types import SqlTextError
from conduit_dagster.processors.common.spark_sql.query_functions import ALLOWED, NO_FUNCTIONS, REFUSED, refusal

_FORM = "SELECT … FROM record [WHERE …]"
_WORD = re.compile(r"[A-Za-z]\w*", re.ASCII)
_BARE = ("current_", "local", "session_user")
"""Beginnings of the refused functions that Spark also calls without parentheses."""
_CLAUSES = {
    "with_": "WITH", "with": "WITH", "distinct": "DISTINCT", "joins": "JOIN", "laterals": "LATERAL VIEW",
    "group": "GROUP BY", "having": "HAVING", "qualify": "QUALIFY", "windows": "WINDOW", "order": "ORDER BY",
    "sort": "SORT BY", "cluster": "CLUSTER BY", "distribute": "DISTRIBUTE BY", "limit": "LIMIT", "offset": "OFFSET",
    "pivots": "PIVOT", "sample": "TABLESAMPLE", "hint": "a hint", "into": "INTO", "locks": "FOR UPDATE",
}  # fmt: skip
_ONE_BY_ONE = "a query takes each record by itself: leave it out"


class Text:
    """Text of one SELECT over the record. Raises :class:`SqlTextError` for anything else."""

    def __init__(self, text: str) -> None:
        import sqlglot
        from sqlglot.errors import SqlglotError

        self.text = text
        try:
            self._tokens = sqlglot.tokenize(text, dialect="spark")
            parsed = [one for one in sqlglot.parse(text, dialect="spark") if one is not None]
        except SqlglotError as error:
            raise self._unreadable(error) from None
        if len(parsed) != 1:
            raise SqlTextError(f"there are {len(parsed)} statements", f"write one: {_FORM}")
        self._check(parsed[0])
        self.items: list[Any] = list(parsed[0].expressions)
        where = parsed[0].args.get("where")
        self.where: Any = where.this if where is not None else None
        self.spans, self.where_span = self._spans()

    def _unreadable(self, error: Any) -> SqlTextError:
        details = (getattr(error, "errors", None) or [{}])[0]
        message = str(details.get("description") or str(error).splitlines()[0])
        message = re.sub(r"<class '[\w.]*\.(\w+)'>", r"\1", message)
        place = sum(len(line) for line in self.text.splitlines(keepends=True)[: details.get("line", 1) - 1])
        return SqlTextError(message, f"write {_FORM}, as Spark has it", place + max(0, details.get("col", 1) - 1))

    # -- checks -------------------------------------------------------------------------------------------------

    def _check(self, tree: Any) -> None:
        from sqlglot import exp

        if not isinstance(tree, exp.Select):
            raise SqlTextError(f"this is {tree.key.upper()}, not a SELECT", f"write {_FORM}")
        for key, name in _CLAUSES.items():
            if tree.args.get(key):
                raise SqlTextError(f"{name} looks beyond one record", _ONE_BY_ONE, self._word(name))
        self._check_table(tree.args.get("from_") or tree.args.get("from"))
        self._check_functions()
        for node in tree.walk():
            if node is not tree:
                self._check_node(node)

    def _check_table(self, source: Any) -> None:
        from sqlglot import exp

        table = source.this if source is not None else None
        extra = ("joins", "laterals", "pivots", "sample", "db", "catalog", "when", "version")
        if not isinstance(table, exp.Table) or table.name != "record" or any(table.args.get(key) for key in extra):
            raise SqlTextError("a query is over the record alone", f"write {_FORM}", self._word("FROM"))
        self._names = {"record", table.alias} - {""}

    def _check_node(self, node: Any) -> None:
        from sqlglot import exp

        if isinstance(node, exp.Query | exp.Subquery | exp.Exists | exp.Window | exp.Placeholder | exp.Parameter):
            kind = "a subquery" if isinstance(node, exp.Query | exp.Subquery | exp.Exists) else node.key.upper()
            raise SqlTextError(f"{kind} looks beyond one record", _ONE_BY_ONE, self._first(node))
        if isinstance(node, exp.Map | exp.VarMap):
            self._check_map(node)
        if isinstance(node, exp.Struct):
            self._check_struct(node)
        if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Select | exp.Column):
            fix = "name the fields: struct(id, name)"
            raise SqlTextError("* inside an expression is not the fields of the record", fix, self._word("*"))

    def _check_struct(self, node: Any) -> None:
        """Check that a struct's fields have different names: as a document it would lose all but the last one."""
        names = Counter(field.this.name if field.key == "propertyeq" else field.name for field in node.expressions)
        if twice := [name for name, count in names.items() if name and count > 1]:
            message = f"the field {twice[0]} of a struct is given twice"
            place = next((one.start for one in self._tokens if one.text.lower() in ("struct", "named_struct")), 0)
            raise SqlTextError(message, "give each field of a struct a name of its own", place)

    def _check_map(self, node: Any) -> None:
        """Check that a map's keys are distinct literals: see ``transform_keys``."""
        keys = list(getattr(node.args.get("keys"), "expressions", []))
        texts = {key.name for key in keys if key.is_string}
        if len(texts) < len(keys):
            message = "the keys of a map may be the same, or NULL"
            raise SqlTextError(message, "write different texts as its keys: map('a', x, 'b', y)", self._first(node))

    def _check_functions(self) -> None:
        """Check functions by their names in the text: the parser may rename a function."""
        for token, before, after in self._neighbours():
            name = token.text.lower()
            if token.token_type.name in ("STRING", "IDENTIFIER", "NUMBER") or not _WORD.fullmatch(name):
                continue
            if before == "." or (after != "(" and (name not in REFUSED or not name.startswith(_BARE))):
                continue
            if name in ALLOWED or name in NO_FUNCTIONS:
                continue
            raise self._refused(name, token.start)

    def _refused(self, name: str, place: int) -> SqlTextError:
        if found := refusal(name):
            why, fix = found
            return SqlTextError(f"{name}() {why}", fix, place)
        near = self.nearest(name, ALLOWED)
        fix = f"did you mean {near}?" if near else "use one of Spark's functions for one value"
        return SqlTextError(f"Spark has no function {name}", fix, place)

    def _neighbours(self) -> Iterator[tuple[Any, str, str]]:
        texts = ["", *(token.text for token in self._tokens), ""]
        for place, token in enumerate(self._tokens):
            yield token, texts[place], texts[place + 2]

    def _word(self, word: str) -> int:
        first = word.split()[0]
        return next((token.start for token in self._tokens if token.text.upper().split()[:1] == [first]), 0)

    def place_of_string(self, value: str) -> int:
        """Return the offset of a text constant."""
        tokens = (token for token in self._tokens if token.text == value and token.token_type.name.endswith("STRING"))
        return next((token.start for token in tokens), 0)

    def _first(self, node: Any) -> int:
        from sqlglot import exp

        starts = [one.meta["start"] for one in node.find_all(exp.Identifier) if "start" in one.meta]
        return min(starts, default=0)

    # -- offsets of the parts -----------------------------------------------------------------------------------

    def _spans(self) -> tuple[list[tuple[int, int]], tuple[int, int]]:
        """Return the spans of the items between SELECT and FROM, and the span of the condition after WHERE."""
        spans: list[tuple[int, int]] = []
        depth, before, begin, where = 0, "SELECT", self._tokens[1].start, 0
        end = begin
        for token in self._tokens[1:]:
            word = token.text.upper() if token.token_type.name not in ("STRING", "IDENTIFIER") else ""
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(word, 0)
            if depth == 0 and where == 0 and (word == "," or (word == "FROM" and before != "DISTINCT")):
                spans.append((begin, end))
                where = -1 if word == "FROM" else 0
            elif depth == 0 and where == -1 and word == "WHERE":
                where = token.end + 1
            if spans and where == 0 and word == "," and depth == 0:
                begin = token.end + 1
            if word != ";":
                end = token.end + 1
            before = word
        if len(spans) != len(self.items):
            raise SqlTextError("the list of columns can't be told apart", "put each expression into brackets", 0)
        return [self._trimmed(*span) for span in spans], self._trimmed(max(where, 0), end)

    def _trimmed(self, begin: int, end: int) -> tuple[int, int]:
        text = self.text[begin:end]
        return begin + len(text) - len(text.lstrip()), end

    def before_alias(self, begin: int, end: int) -> int:
        """Return the end of the expression in ``expression AS name``."""
        tokens = [token for token in self._tokens if begin <= token.start < end]
        last = tokens[-2] if tokens[-2].text.upper() != "AS" else tokens[-3]
        return int(last.end) + 1

    # -- names --------------------------------------------------------------------------------------------------

    def parts(self, column: Any) -> list[Any]:
        """Return the identifiers of a column in the order in which they are written."""
        return [one for key in ("catalog", "db", "table", "this") if (one := column.args.get(key)) is not None]

    def path(self, column: Any) -> list[Any]:
        """Return the identifiers of a column without the table's name."""
        parts = self.parts(column)
        return parts[1:] if len(parts) > 1 and parts[0].name in self._names else parts

    def is_unnamed_field(self, column: Any) -> bool:
        """Return whether a column gives a struct's field its name: ``struct(id)``."""
        field, path = column.parent, self.path(column)
        return len(path) == 1 and field.key == "propertyeq" and field.this.meta.get("start") == path[0].meta["start"]

    def start(self, identifier: Any) -> int:
        """Return the start offset of an identifier."""
        return int(identifier.meta["start"])

    def end(self, identifier: Any) -> int:
        """Return the end offset of an identifier."""
        return int(identifier.meta["end"]) + 1

    def nearest(self, name: str, known: Iterable[str]) -> str | None:
        """Return the known name most similar to ``name``, or None if none is close."""
        return next(iter(get_close_matches(name, list(known), 1)), None)
