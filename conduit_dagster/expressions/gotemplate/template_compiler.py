"""Compiler from the text of a Go template to a function of one record."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from conduit_dagster import record as opencdc
from conduit_dagster.expressions import limits
from conduit_dagster.expressions.compiled import PARTS, Compiled, EvaluationError, ExpressionError, compiled
from conduit_dagster.expressions.gotemplate.go_values import (
    equal,
    format_go,
    is_part_of_bool,
    parse_bool,
    printed,
    quoted,
)
from conduit_dagster.expressions.gotemplate.syntax import Action, Call, Chain, Literal, Node, Parser, Path, split
from conduit_dagster.expressions.gotemplate.template_functions import (
    BOOLEAN,
    MAKING,
    TABLE,
    TemplateFunction,
    compile_format,
    index_metadata,
    to_json,
)
from conduit_dagster.expressions.gotemplate.template_paths import Evaluate, after_field, compile_path, data_part, walk
from conduit_dagster.record import Record

_AS_IS: Final = frozenset({str, int})
"""Types that Go prints exactly as an f-string does."""
_FIELD: Final = "{{value if (value := after.get(part_{i})).__class__ in as_is else printed(value)}}"
_WHOLE: Final = "lambda record: one_by_one(record) if (after := record.after).__class__ is not dict else f'{}'"


class _PrintedAction(NamedTuple):
    """An action of a template."""

    call: Callable[[Record], str]
    """Function that returns the action's output."""
    field: str | None
    """The field's name if the action is just ``.Payload.After.FIELD``, otherwise ``None``."""


_AT_ONCE = 16
"""Number of pieces of a template that are printed between checks of the output's size."""


def _joining_many(pieces: Sequence[str | _PrintedAction]) -> Callable[[Record], str]:
    """Return :func:`_joining`, for many pieces, with a limit on the output: each may print the whole record."""
    if len(pieces) <= 2 * _AT_ONCE:
        return _joining(pieces)
    groups = [_joining(pieces[i : i + _AT_ONCE]) for i in range(0, len(pieces), _AT_ONCE)]

    def call(record: Record) -> str:
        texts: list[str] = []
        size = 0
        for group in groups:
            text = group(record)
            size += len(text)
            if size > limits.MADE:
                limits.within(size, limits.MADE, "the template's output")
            texts.append(text)
        return "".join(texts)

    return call


def _joining(pieces: Sequence[str | _PrintedAction]) -> Callable[[Record], str]:
    """Return a function that concatenates the output of texts and actions."""
    scope: dict[str, Any] = {"as_is": _AS_IS, "printed": printed, "one_by_one": _one_by_one(pieces)}
    # template text never enters the generated source: it is only the value of these names
    parts: list[str] = []
    for i, piece in enumerate(pieces):
        if isinstance(piece, str):
            scope[f"part_{i}"] = piece
            parts.append(f"{{part_{i}}}")
        elif piece.field is None:
            scope[f"part_{i}"] = piece.call
            parts.append(f"{{part_{i}(record)}}")
        else:
            scope[f"part_{i}"] = piece.field
            parts.append(_FIELD.format(i=i))
    return eval(compile(_WHOLE.format("".join(parts)), "<template>", "eval"), scope)


def _one_by_one(pieces: Sequence[str | _PrintedAction]) -> Callable[[Record], str]:
    def call(record: Record) -> str:
        return "".join([piece if isinstance(piece, str) else piece.call(record) for piece in pieces])

    return call


def operations(node: Node) -> int:
    """Return the number of functions in ``node`` that build text."""
    if isinstance(node, Chain):
        return operations(node.base)
    return (node.function in MAKING) + sum(map(operations, node.arguments)) if isinstance(node, Call) else 0


class TemplateBudget(threading.local):
    """Budget of one evaluation of a template with many functions that build text."""

    left: int = 0

    def begin(self) -> None:
        """Begin an evaluation."""
        self.left = limits.MADE

    def charge(self, made: Any) -> Any:
        """Return a function's result, after charging its size."""
        self.left -= len(made)
        if self.left < 0:
            raise EvaluationError(f"the template makes more than {limits.MADE:,} characters")
        return made


_METADATA = ("Metadata",)
_ALONE = (
    "leave the action alone: {{- … -}} removes blanks and line ends around it, and so do >- and |- of YAML's blocks"
)


def template_text(text: str) -> Compiled:
    """Compile a template to a function that returns its output.

    ``json_of`` is set for a single ``toJson`` of a part of the record, ``literal`` for a template without actions.
    """
    compiler = _Compiler()
    parts = compiler.parts(text)
    if len(parts) == 1 and not isinstance(parts[0], str):
        node = parts[0]
        printing = compiler.whole(compiler.printing(node))
        return compiled(printing, compiler.names, json_of=_json_of(node))
    if all(isinstance(part, str) for part in parts):
        return _literal("".join(cast(list[str], parts)))
    pieces = [p if isinstance(p, str) else _PrintedAction(compiler.printing(p), after_field(p)) for p in parts]
    return compiled(compiler.whole(_joining_many(pieces)), compiler.names)


def template_condition(text: str) -> Compiled:
    """Compile a template whose output is parsed as a boolean by Go's rules; any other output raises for the record.

    Raises :class:`ExpressionError` also for a text beside the actions with which no output is a boolean.
    """
    compiler = _Compiler()
    parts = compiler.parts(text)
    for part in parts:
        if isinstance(part, str) and not is_part_of_bool(part):
            raise ExpressionError(f"with {quoted(part[:60])} in it the output is never a boolean", fix=_ALONE)
    if len(parts) != 1 or isinstance(parts[0], str):
        whole = template_text(text)
        return compiled(lambda record: parse_bool(whole(record)), whole.names)
    value = compiler.value(parts[0])
    is_boolean = isinstance(parts[0], Call) and parts[0].function in BOOLEAN
    made = value if is_boolean else _truth(value, compiler.printing(parts[0]))
    return compiled(compiler.whole(made), compiler.names)


def _truth(value: Evaluate, printing: Callable[[Record], str]) -> Evaluate:
    def call(record: Record) -> bool:
        result = value(record)
        return result if result.__class__ is bool else parse_bool(printing(record))

    return call


def _literal(text: str) -> Compiled:
    return compiled(lambda _: text, (), literal=text)


def _json_of(node: Node) -> str | None:
    if not isinstance(node, Call) or node.function != "toJson" or not isinstance(node.arguments[0], Path):
        return None
    return data_part(node.arguments[0]) if node.arguments[0].names else "record"


class _Compiler:
    """Compiler of one template's actions; collects the parts of the record that they read."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._budget: TemplateBudget | None = None

    def parts(self, text: str) -> list[str | Node]:
        """Return the template as texts and syntax trees, without empty texts and comments."""
        if len(text) > limits.TEMPLATE_CHARS:
            raise ExpressionError(f"the template is longer than {limits.TEMPLATE_CHARS:,} characters")
        found = [part for part in split(text) if part and not (isinstance(part, Action) and not part.tokens)]
        made = [part if isinstance(part, str) else Parser(part).action() for part in found]
        if sum(operations(part) for part in made if not isinstance(part, str)) > limits.OPERATIONS:
            self._budget = TemplateBudget()
        return made

    def whole(self, function: Evaluate) -> Evaluate:
        """Return the function of the whole template, which starts each evaluation with a full budget, if it has one."""
        budget = self._budget
        if budget is None:
            return function

        def call(record: Record) -> Any:
            budget.begin()
            return function(record)

        return call

    def printing(self, node: Node) -> Callable[[Record], str]:
        """Return a function that prints the action.

        A missing field is printed as ``<no value>``, a missing payload or key as ``<nil>``.
        """
        value = self.value(node)
        if isinstance(node, Path) and data_part(node):
            return lambda record: format_go(value(record))
        if isinstance(node, Call) and node.function in ("toJson", "toString", "printf", "print"):
            return value
        return lambda record: printed(value(record))

    def value(self, node: Node) -> Evaluate:
        """Return the function that evaluates the node."""
        if isinstance(node, Literal):
            constant = node.value
            return lambda _: constant
        if isinstance(node, Path):
            evaluate, part = compile_path(node)
            self.names.add(part)
            return evaluate
        return self._chain(node) if isinstance(node, Chain) else self._call(node)

    def _chain(self, node: Chain) -> Evaluate:
        base, names = self.value(node.base), node.names

        def call(record: Record) -> Any:
            value = base(record)
            # unlike in a path, a field of null is missing
            return None if value is None else walk(value, names, "the parenthesis")

        return call

    def _call(self, node: Call) -> Evaluate:
        function = TABLE[node.function]
        _check_count(node, function)
        special = getattr(self, f"_{node.function}", None)
        made = special(node) if special else None
        made = made or _applied(cast(Callable[..., Any], function.call), self._arguments(node.arguments))
        return self._charged(made) if node.function in MAKING else made

    def _charged(self, made: Evaluate) -> Evaluate:
        if self._budget is None:
            return made
        charge = self._budget.charge
        return lambda record: charge(made(record))

    def _arguments(self, nodes: Sequence[Node]) -> list[Evaluate]:
        """Return the arguments' functions. Computed text over the limit is not built into longer text."""
        return [_limited(self.value(node)) if operations(node) else self.value(node) for node in nodes]

    def _and(self, node: Call) -> Evaluate:
        return _choosing([self.value(argument) for argument in node.arguments], until=False)

    def _or(self, node: Call) -> Evaluate:
        return _choosing([self.value(argument) for argument in node.arguments], until=True)

    def _printf(self, node: Call) -> Evaluate:
        form, *values = node.arguments
        if not isinstance(form, Literal) or not isinstance(form.value, str):
            raise ExpressionError("printf's format is a literal text", node.column, '{{ printf "%s" .Key }}')
        call = compile_format(form.value, len(values), form.column)
        return _applied(call, [self._sized(value) for value in values])

    def _len(self, node: Call) -> Evaluate:
        return _applied(cast(Callable[..., Any], TABLE["len"].call), [self._sized(node.arguments[0])])

    def _sized(self, node: Node) -> Evaluate:
        """Return an argument's function; a missing key or payload is raw data without bytes, as a source gives it."""
        (evaluate,) = self._arguments([node])
        if not isinstance(node, Path) or not data_part(node):
            return evaluate
        return lambda record: b"" if (value := evaluate(record)) is None else value

    def _index(self, node: Call) -> Evaluate | None:
        first = node.arguments[0]
        if len(node.arguments) == 1 or not isinstance(first, Path) or first.names != _METADATA:
            return None
        return _applied(index_metadata, [self.value(argument) for argument in node.arguments])

    def _toJson(self, node: Call) -> Evaluate | None:  # noqa: N802  # named after the function
        path = node.arguments[0]
        if not isinstance(path, Path) or path.names not in ((), ("Payload",)):
            return None
        self.names |= {"after", "before"} if path.names else PARTS
        if path.names:
            return lambda record: to_json(opencdc.Payload(record.before, record.after))
        return lambda record: opencdc.encode(record).decode()

    def _eq(self, node: Call) -> Evaluate | None:
        if len(node.arguments) != 2:
            return None
        left, right = node.arguments
        if isinstance(right, Literal) and isinstance(right.value, str):
            return _eq_text(self.value(left), right.value)
        return _applied(equal, [self.value(left), self.value(right)])


def _check_count(node: Call, function: TemplateFunction) -> None:
    count = len(node.arguments)
    if function.least <= count <= function.most:
        return
    wanted = f"{function.least}" if function.most in (function.least, 255) else f"{function.least} to {function.most}"
    least = "at least " if function.most == 255 else ""
    raise ExpressionError(f"`{node.function}` takes {least}{wanted} arguments, not {count}", node.column)


def _eq_text(value: Evaluate, wanted: str) -> Evaluate:
    def call(record: Record) -> bool:
        found = value(record)
        return found == wanted if found.__class__ is str else equal(found, wanted)

    return call


def _limited(value: Evaluate) -> Evaluate:
    return lambda record: limits.within_text(value(record))


def _choosing(values: list[Evaluate], *, until: bool) -> Evaluate:
    def call(record: Record) -> Any:
        result: Any = None
        for value in values:
            result = value(record)
            if bool(result) is until:
                return result
        return result

    return call


def _applied(function: Callable[..., Any], values: list[Evaluate]) -> Evaluate:
    if len(values) == 1:
        (only,) = values
        return lambda record: function(only(record))
    if len(values) == 2:
        first, second = values
        return lambda record: function(first(record), second(record))
    return lambda record: function(*[value(record) for value in values])
