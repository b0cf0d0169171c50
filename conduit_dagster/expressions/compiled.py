"""What compiling an expression gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

from conduit_dagster.record import Record

PARTS = frozenset({"after", "before", "key", "metadata", "operation", "position"})


def reads_key(names: frozenset[str]) -> bool:
    """Whether what looks at these parts needs every record's key and position."""
    return not names.isdisjoint(("key", "position"))


class Compiled(Protocol):
    """A function of one record.

    It never changes the record, but what it returns may be a part of the record: copy it before changing it.
    It cannot be pickled: compile in the worker.
    """

    names: frozenset[str]
    """The parts of the record it looks at, out of :data:`PARTS`."""
    literal: str | None
    """The result, where it is the same text for every record."""
    json_of: str | None
    """The part (``record``: all of it) where the result is just that part as JSON: ``{{ toJson … }}``."""

    def __call__(self, record: Record, /) -> Any:
        """The value for this record. Raises for a record that the expression does not fit."""
        ...


def compiled(
    function: Callable[[Record], Any],
    names: Iterable[str],
    *,
    literal: str | None = None,
    json_of: str | None = None,
) -> Compiled:
    """The function itself with its attributes: a wrapping object would cost every call."""
    made = cast(Any, function)
    made.names = frozenset(names)
    made.literal = literal
    made.json_of = json_of
    return cast(Compiled, made)
