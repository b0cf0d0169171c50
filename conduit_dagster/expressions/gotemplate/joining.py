"""A template of several parts as one f-string, for it takes half the time of joining what each part gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from conduit_dagster.expressions.gotemplate.values import printed
from conduit_dagster.record import Record

_AS_IS: Final = frozenset({str, int})
"""Types that Go prints just as an f-string does."""
_FIELD: Final = "{{value if (value := after.get(part_{i})).__class__ in as_is else printed(value)}}"
_WHOLE: Final = "lambda record: one_by_one(record) if (after := record.after).__class__ is not dict else f'{}'"


class Printing(NamedTuple):
    """An action of a template."""

    call: Callable[[Record], str]
    """What it writes."""
    field: str | None
    """The field where it is just ``.Payload.After.FIELD``."""


def joining(pieces: Sequence[str | Printing]) -> Callable[[Record], str]:
    """A function that gives what texts and actions write, one after another."""
    scope: dict[str, Any] = {"as_is": _AS_IS, "printed": printed, "one_by_one": _one_by_one(pieces)}
    # nothing of the template is in the source: it is what these names stand for
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


def _one_by_one(pieces: Sequence[str | Printing]) -> Callable[[Record], str]:
    def call(record: Record) -> str:
        return "".join([piece if isinstance(piece, str) else piece.call(record) for piece in pieces])

    return call
