"""A template of several parts as one f-string, for it takes half the time of joining what each part gives."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from conduit_dagster.expressions.gotemplate.values import printed
from conduit_dagster.record import Record

_AS_IS: Final = frozenset({str, int})
"""Types that Go prints just as an f-string does."""
_FIELD: Final = "value if (value := after.get({name!r})).__class__ in as_is else printed(value)"
_WHOLE: Final = "lambda record: one_by_one(record) if (after := record.after).__class__ is not dict else whole"


class Printing(NamedTuple):
    """An action of a template."""

    call: Callable[[Record], str]
    """What it writes."""
    field: str | None
    """The field where it is just ``.Payload.After.FIELD``."""


def joining(pieces: Sequence[str | Printing]) -> Callable[[Record], str]:
    """A function that gives what texts and actions write, one after another."""
    scope: dict[str, Any] = {"as_is": _AS_IS, "printed": printed, "one_by_one": _one_by_one(pieces)}
    parts: list[ast.expr] = []
    for i, piece in enumerate(pieces):
        if isinstance(piece, str):
            parts.append(ast.Constant(piece))
            continue
        scope[f"piece_{i}"] = piece.call
        text = f"piece_{i}(record)" if piece.field is None else _FIELD.format(name=piece.field)
        parts.append(ast.FormattedValue(ast.parse(text, mode="eval").body, conversion=-1))
    tree = ast.parse(_WHOLE, mode="eval")
    cast(Any, tree.body).body.orelse = ast.JoinedStr(parts)
    # nothing of the template's text is in it but as a constant
    return eval(compile(ast.fix_missing_locations(tree), "<template>", "eval"), scope)


def _one_by_one(pieces: Sequence[str | Printing]) -> Callable[[Record], str]:
    def call(record: Record) -> str:
        return "".join([piece if isinstance(piece, str) else piece.call(record) for piece in pieces])

    return call
