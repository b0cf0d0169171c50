"""The text of a Python expression, its syntax tree, and where in the text a node stands."""

from __future__ import annotations

import ast
import keyword
import re
import warnings

from conduit_dagster.expressions import limits
from conduit_dagster.expressions.errors import ExpressionError

_LINE_ENDS = re.compile(r"\r\n?|\n")
_WORD_FIELD = re.compile(rf"\.\s*({'|'.join(keyword.kwlist)})\b")


class Source:
    """One expression. Where it has several lines it is read as if it stood in parentheses."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._indent = len(text) - len(text.lstrip())
        body = text.strip()
        self._wrapped = _LINE_ENDS.search(body) is not None
        self._parsed = f"({body}\n)" if self._wrapped else body
        self._starts = [0, *(end.end() for end in _LINE_ENDS.finditer(self._parsed))]

    def column(self, line: int, bytes_before: int) -> int:
        """The place in the text given of a place in the parsed text; ``ast`` counts bytes of UTF-8."""
        start = self._starts[min(line, len(self._starts)) - 1]
        before = self._parsed[start:].encode(errors="replace")[:bytes_before].decode(errors="ignore")
        return self._placed(start + len(before))

    def _placed(self, offset: int) -> int:
        return min(max(0, offset - self._wrapped + self._indent), len(self.text))

    def parse(self) -> ast.Expression:
        """The syntax tree, of bounded depth. Raises :class:`ExpressionError` whatever the text is."""
        if len(self.text) > limits.EXPRESSION_CHARS:
            raise ExpressionError(f"the expression is longer than {limits.EXPRESSION_CHARS:,} characters")
        if not self._parsed:
            raise ExpressionError("the expression is empty", 0)
        tree = self._tree()
        self._check_depth(tree)
        return tree

    def _tree(self) -> ast.Expression:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(self._parsed, "<expression>", mode="eval")
        except SyntaxError as error:
            raise self._syntax(error) from None
        except (RecursionError, MemoryError):
            raise _too_deep(None) from None
        except ValueError as error:
            raise ExpressionError(f"not a Python expression: {error}") from None

    def _syntax(self, error: SyntaxError) -> ExpressionError:
        start = self._starts[min(error.lineno or 1, len(self._starts)) - 1]
        # Python gives no offset, or 0, where the text ends too early
        offset = start + error.offset - 1 if error.offset else len(self._parsed)
        column = self._placed(offset)
        return ExpressionError(f"not a Python expression: {error.msg}", column, self._syntax_fix(column))

    def _syntax_fix(self, column: int) -> str | None:
        word = _WORD_FIELD.search(self._parsed)
        if word is None:
            return "did you mean `==`?" if self.text[column : column + 1] == "=" else None
        return f"`{word[1]}` is a word of Python: write that field as an item, after['{word[1]}']"

    def _check_depth(self, tree: ast.Expression) -> None:
        level: list[ast.AST] = [tree.body]
        for _ in range(limits.DEPTH):
            level = [child for node in level for child in ast.iter_child_nodes(node)]
            if not level:
                return
        raise _too_deep(next((self._at(node) for node in level if isinstance(node, ast.expr)), None))

    def _at(self, node: ast.expr) -> int:
        return self.column(node.lineno, node.col_offset)


def _too_deep(column: int | None) -> ExpressionError:
    return ExpressionError(f"the expression is nested more than {limits.DEPTH} deep", column, "split it")
