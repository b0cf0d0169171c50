"""Output of a Go template: its texts and actions, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from conduit_dagster.expressions import limits
from conduit_dagster.expressions.gotemplate.go_values import printed
from conduit_dagster.record import Record

_AS_IS: Final = frozenset({str, int})
"""Types that Go prints exactly as an f-string does."""
_FIELD: Final = "{{value if (value := after.get(part_{i})).__class__ in as_is else printed(value)}}"
_WHOLE: Final = "lambda record: one_by_one(record) if (after := record.after).__class__ is not dict else f'{}'"


class PrintedAction(NamedTuple):
    """An action of a template."""

    call: Callable[[Record], str]
    """Function that returns the action's output."""
    field: str | None
    """The field's name if the action is just ``.Payload.After.FIELD``, otherwise ``None``."""


_AT_ONCE = 16
"""Number of pieces of a template that are printed between checks of the output's size."""


def joining_many(pieces: Sequence[str | PrintedAction]) -> Callable[[Record], str]:
    """Return :func:`joining`, for many pieces, with a limit on the output: each may print the whole record."""
    if len(pieces) <= 2 * _AT_ONCE:
        return joining(pieces)
    groups = [joining(pieces[i : i + _AT_ONCE]) for i in range(0, len(pieces), _AT_ONCE)]

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


def joining(pieces: Sequence[str | PrintedAction]) -> Callable[[Record], str]:
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


def _one_by_one(pieces: Sequence[str | PrintedAction]) -> Callable[[Record], str]:
    def call(record: Record) -> str:
        return "".join([piece if isinstance(piece, str) else piece.call(record) for piece in pieces])

    return call
