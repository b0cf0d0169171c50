"""Allow-list of Python expressions: syntax, names, functions and methods."""

from __future__ import annotations

import ast
import keyword
import math
import re
import warnings
from itertools import pairwise
from typing import NoReturn

import re2

from conduit_dagster.expressions import limits
from conduit_dagster.expressions.compiled import PARTS, ExpressionError, nearest
from conduit_dagster.expressions.python.expression_functions import FUNCTIONS, METHODS, TYPES, Function, Method, search
from conduit_dagster.record import OPERATIONS

_LINE_ENDS = re.compile(r"\r\n?|\n")
_WORD_FIELD = re.compile(rf"\.\s*({'|'.join(keyword.kwlist)})\b")

_OTHER_SIGNS = {
    "!==": "did you mean `!=`?",
    "&&": "did you mean `and`?",
    "||": "did you mean `or`?",
    "!": "did you mean `not`?",
    "<>": "did you mean `!=`?",
    "=": "did you mean `==`?",
    "?": "write `x if condition else y`",
    **dict.fromkeys((".Payload", ".Key", ".Metadata"), "a field is written after.x, key.x or metadata['x']"),
    **dict.fromkeys("“”‘’", "write straight quotes: ' or \""),  # noqa: RUF001  # as a text program writes them
}


class ExpressionText:
    """Source text of one expression. Several lines are parsed as if they stood in parentheses."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._indent = len(text) - len(text.lstrip())
        body = text.strip()
        self._wrapped = _LINE_ENDS.search(body) is not None
        self._parsed = f"({body}\n)" if self._wrapped else body
        self._starts = [0, *(end.end() for end in _LINE_ENDS.finditer(self._parsed))]

    def column(self, line: int, bytes_before: int) -> int:
        """Map a position in the parsed text to a column of the original text; ``ast`` counts bytes of UTF-8."""
        start = self._starts[min(line, len(self._starts)) - 1]
        before = self._parsed[start:].encode(errors="replace")[:bytes_before].decode(errors="ignore")
        return self._placed(start + len(before))

    def _placed(self, offset: int) -> int:
        return min(max(0, offset - self._wrapped + self._indent), len(self.text))

    def parse(self) -> ast.Expression:
        """Return the syntax tree, of bounded depth. Raises only :class:`ExpressionError`, for any text."""
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
        # Python gives no offset, or 0, if the text ends too early
        offset = start + error.offset - 1 if error.offset else len(self._parsed)
        column = self._placed(offset)
        return ExpressionError(f"not a Python expression: {error.msg}", column, self._syntax_fix(column))

    def _syntax_fix(self, column: int) -> str | None:
        word = _WORD_FIELD.search(self._parsed)
        if word is None:
            # Python names the first or the last character of what it can't take
            at = ((sign, max(0, column + 1 - len(sign))) for sign in _OTHER_SIGNS)
            found = (s for s, last in at if self.text.startswith(s, last) or self.text.startswith(s, column))
            return next((_OTHER_SIGNS[sign] for sign in found), None)
        return f"`{word[1]}` is a word of Python: write that field as an item, after['{word[1]}']"

    def _check_depth(self, tree: ast.Expression) -> None:
        if below := nodes_below(tree.body, limits.DEPTH):
            raise _too_deep(next((self._at(node) for node in below if isinstance(node, ast.expr)), None))

    def _at(self, node: ast.expr) -> int:
        return self.column(node.lineno, node.col_offset)


def nodes_below(tree: ast.AST, depth: int) -> list[ast.AST]:
    """Return the nodes that lie ``depth`` levels below the root, without recursion; empty if it is not that deep."""
    level = [tree]
    for _ in range(depth):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return level


def _too_deep(column: int | None) -> ExpressionError:
    return ExpressionError(f"the expression is nested more than {limits.DEPTH} deep", column, "split it")


_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_SIGNS = (ast.Not, ast.USub, ast.UAdd)
_PLAIN = (ast.BoolOp, ast.IfExp, ast.List, ast.Tuple, ast.Subscript, ast.Slice)
_WORDS: dict[type[ast.AST], str] = {
    ast.Lambda: "lambda",
    ast.NamedExpr: "the assignment `:=`",
    ast.Starred: "`*`",
    ast.Await: "await",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
    ast.Set: "a set",
    ast.SetComp: "a set comprehension",
    ast.DictComp: "a dict comprehension",
    ast.Pow: "`**`",
    ast.LShift: "`<<`",
    ast.RShift: "`>>`",
    ast.MatMult: "`@`",
    ast.BitOr: "`|`",
    ast.BitAnd: "`&`",
    ast.BitXor: "`^`",
    ast.Invert: "`~`",
}
_OTHER_LANGUAGES = {"true": "True", "false": "False", "null": "None", "nil": "None", "undefined": "None"}


class ExpressionChecker:
    """Checker of a tree of bounded depth: refuses, with its column, anything that is not in the allow-list."""

    def __init__(self, source: ExpressionText) -> None:
        self.names: set[str] = set()
        self._source = source
        self._loop: str | None = None
        self._text: ast.JoinedStr | None = None
        self._comprehensions = 0

    def check(self, node: ast.AST) -> None:
        """Raise :class:`ExpressionError` for the first node that is not allowed."""
        own = getattr(self, f"_{type(node).__name__}", None)
        if own is not None:
            own(node)
        elif isinstance(node, _PLAIN):
            self._children(node)
        else:
            self._refuse(node, f"{_word(node)} is not allowed in an expression")

    def _children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.expr_context, ast.cmpop, ast.boolop)):
                self.check(child)

    def _refuse(self, node: ast.AST, message: str, fix: str | None = None) -> NoReturn:
        # Python 3.11 gives no positions for nodes inside an f-string
        place = self._text or node
        column = None
        if isinstance(place, (ast.expr, ast.keyword)):
            column = self._source.column(place.lineno, place.col_offset)
        raise ExpressionError(message, column, fix)

    def _Name(self, node: ast.Name) -> None:  # noqa: N802  # named after the syntax
        if node.id == self._loop:
            return
        if node.id in PARTS:
            self.names.add(node.id)
        elif node.id in FUNCTIONS:
            self._refuse(node, f"`{node.id}` is a function: call it", f"{node.id}(…)")
        else:
            self._unknown(node, node.id)

    def _unknown(self, node: ast.AST, name: str) -> NoReturn:
        close = _OTHER_LANGUAGES.get(name)
        fix = f"did you mean `{close}`?" if close else nearest(name, [*PARTS, *FUNCTIONS, "True", "False", "None"])
        self._refuse(node, f"unknown name `{name}`", fix or f"fields are written `after.{name}`")

    def _Constant(self, node: ast.Constant) -> None:  # noqa: N802
        value = node.value
        if not isinstance(value, (str, int, float, bool, type(None))):
            self._refuse(node, f"a literal of type {type(value).__name__} is not allowed in an expression")
        if isinstance(value, float) and not math.isfinite(value):
            self._refuse(node, "the number is too large for a float")
        if isinstance(value, int) and value.bit_length() > limits.LITERAL_BITS:
            self._refuse(node, f"the number has more than {limits.LITERAL_BITS} bits")

    def _Attribute(self, node: ast.Attribute) -> None:  # noqa: N802
        self.check(node.value)
        if node.attr.startswith("_"):
            fix = f"a field of that name is written as an item: {self._written(node.value)}['{node.attr}']"
            self._refuse(node, f"`.{node.attr}`: a name that begins with an underscore is not allowed", fix)

    def _written(self, node: ast.expr) -> str:
        start = self._source.column(node.lineno, node.col_offset)
        return self._source.text[start : self._source.column(node.end_lineno or 1, node.end_col_offset or 0)]

    def _BinOp(self, node: ast.BinOp) -> None:  # noqa: N802
        self.check(node.left)
        if not isinstance(node.op, _OPERATORS):
            self._refuse(node, f"{_word(node.op)} is not allowed in an expression")
        self.check(node.right)

    def _Compare(self, node: ast.Compare) -> None:  # noqa: N802
        self._children(node)
        sides = [node.left, *node.comparators]
        for (left, right), operator in zip(pairwise(sides), node.ops, strict=True):
            if isinstance(operator, (ast.Is, ast.IsNot)) and not (_is_single(left) or _is_single(right)):
                # whether two equal values are one object differs from one attempt to the next
                close = "==" if isinstance(operator, ast.Is) else "!="
                self._refuse(right, "`is` compares with None, True or False only", f"did you mean `{close}`?")
            self._check_constants(left, right)
            if not isinstance(operator, (ast.In, ast.NotIn)):
                self._check_constants(right, left)

    def _check_constants(self, side: ast.expr, other: ast.expr) -> None:
        """Refuse what no record's ``side`` equals: the comparison would be the same for all of them."""
        part = _part_of_text(side)
        for constant in _constants(other) if part else ():
            value = constant.value
            if isinstance(value, (int, float)):
                fix = f"write {str(value).lower()!r}, or compare int({self._written(side)})"
                self._refuse(constant, f"{part} is text, which equals no {type(value).__name__}", fix)
            if part == "operation" and isinstance(value, str) and value not in OPERATIONS:
                self._refuse(constant, f"there is no operation {value!r}", f"it is {', '.join(OPERATIONS)}")

    def _UnaryOp(self, node: ast.UnaryOp) -> None:  # noqa: N802
        if not isinstance(node.op, _SIGNS):
            self._refuse(node, f"{_word(node.op)} is not allowed in an expression")
        self.check(node.operand)

    def _Dict(self, node: ast.Dict) -> None:  # noqa: N802
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                self._refuse(key or value, "a key of an object is a literal text")
            self.check(value)

    def _JoinedStr(self, node: ast.JoinedStr) -> None:  # noqa: N802
        outer, self._text = self._text, self._text or node
        for part in node.values:
            self.check(part)
        self._text = outer

    def _FormattedValue(self, node: ast.FormattedValue) -> None:  # noqa: N802
        if node.format_spec is not None or node.conversion != -1:
            self._refuse(node, "an f-string takes no format or conversion", "write round(x, 2) or str(x) in it")
        self.check(node.value)

    def _ListComp(self, node: ast.ListComp | ast.GeneratorExp) -> None:  # noqa: N802
        (loop, *more) = node.generators
        self._comprehensions += 1
        if self._loop is not None or more or loop.is_async:
            self._refuse(node, "a comprehension has one `for` and holds no other comprehension")
        if self._comprehensions > limits.COMPREHENSIONS:
            self._refuse(node, f"an expression holds at most {limits.COMPREHENSIONS} comprehensions")
        self._scope(node.elt, loop)

    def _scope(self, element: ast.expr, loop: ast.comprehension) -> None:
        target = loop.target
        if not isinstance(target, ast.Name):
            self._refuse(target, "a comprehension has one loop variable")
        if target.id in PARTS or target.id in FUNCTIONS or target.id.startswith("_"):
            self._refuse(target, f"`{target.id}` cannot be a loop variable", "take another name")
        self._loop = ""  # no loop variable yet, but nested comprehensions are already refused
        self.check(loop.iter)
        self._loop = target.id
        for part in (*loop.ifs, element):
            self.check(part)
        self._loop = None

    def _GeneratorExp(self, node: ast.GeneratorExp) -> None:  # noqa: N802
        loops = [name for name, function in FUNCTIONS.items() if function.loops]
        self._refuse(node, "a generator stands alone in a call", f"only in {', '.join(loops)} and join")

    def _Call(self, node: ast.Call) -> None:  # noqa: N802
        if isinstance(node.func, ast.Attribute):
            self._method(node, node.func)
        elif not isinstance(node.func, ast.Name):
            self._refuse(node.func, "only functions and methods can be called")
        elif node.func.id not in FUNCTIONS:
            self._unknown_call(node.func)
        else:
            self._function(node, node.func.id)

    def _unknown_call(self, name: ast.Name) -> NoReturn:
        known = ", ".join(FUNCTIONS)
        self._refuse(name, f"unknown function `{name.id}`", nearest(name.id, FUNCTIONS) or f"the functions are {known}")

    def _method(self, node: ast.Call, called: ast.Attribute) -> None:
        self.check(called.value)
        method = METHODS.get(called.attr)
        if method is None:
            known = ", ".join(sorted(METHODS))
            fix = nearest(called.attr, METHODS) or f"the methods are {known}"
            self._refuse(called, f"unknown method `{called.attr}`", fix)
        self._arguments(node, called.attr, method, frozenset())

    def _function(self, node: ast.Call, name: str) -> None:
        self._arguments(node, name, FUNCTIONS[name], FUNCTIONS[name].keywords)
        if name == "regex":
            self._pattern(node.args[0])

    def _arguments(self, node: ast.Call, name: str, wanted: Function | Method, keywords: frozenset[str]) -> None:
        if not wanted.least <= len(node.args) <= wanted.most:
            self._refuse(node, f"{name}() takes {_count(wanted)}, not {len(node.args)}")
        for given in node.keywords:
            if given.arg not in keywords:
                self._refuse(given, f"{name}() takes no `{given.arg or '**'}=`")
            self.check(given.value)
        for index, argument in enumerate(node.args):
            self._argument(argument, name, index, wanted.loops and len(node.args) == 1)

    def _argument(self, node: ast.expr, name: str, index: int, loops: bool) -> None:
        if isinstance(node, ast.GeneratorExp) and loops:
            self._ListComp(node)
        elif name == "isinstance" and index == 1:
            self._types(node)
        else:
            self.check(node)

    def _types(self, node: ast.expr) -> None:
        for kind in node.elts if isinstance(node, ast.Tuple) else [node]:
            if not isinstance(kind, ast.Name) or kind.id not in TYPES:
                self._refuse(kind, "isinstance() takes a type or several in parentheses", f"one of {', '.join(TYPES)}")

    def _pattern(self, node: ast.expr) -> None:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            self._refuse(node, "the pattern of regex() is a literal text", "regex('^a', after.name)")
        try:
            search(node.value)
        except re2.error as error:
            self._refuse(node, f"not a regular expression (RE2): {_reason(error)}")


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


def _is_single(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))


def _word(node: ast.AST) -> str:
    return _WORDS.get(type(node), f"`{type(node).__name__}`")


def _count(wanted: Function | Method) -> str:
    if wanted.least == wanted.most:
        return f"{wanted.least} argument{'' if wanted.least == 1 else 's'}"
    return f"{wanted.least} to {wanted.most} arguments"


def _part_of_text(node: ast.expr) -> str:
    """Return the part of a record that the node is, if that is always text or missing; else nothing."""
    if isinstance(node, ast.Name) and node.id in ("operation", "position"):
        return node.id
    if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.value, ast.Name):
        return "metadata" if node.value.id == "metadata" else ""
    return ""


def _constants(node: ast.expr) -> list[ast.Constant]:
    """Return the literal that the node is, or those in the list that it is."""
    nodes = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    return [one for one in nodes if isinstance(one, ast.Constant)]
