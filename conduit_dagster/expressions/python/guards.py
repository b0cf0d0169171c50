"""Guarded versions of `.`, `[]`, operators and loops for Python expressions.

Generated code calls these instead of Python's own operations, so nothing outside the record can be reached
and nothing grows without bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from conduit_dagster.expressions import limits
from conduit_dagster.expressions.compiled import PARTS, RAW_PARTS, EvaluationError, kind
from conduit_dagster.expressions.limits import CONTAINERS, measure

_NUMBERS = frozenset({int, float, bool})
_SIZED = frozenset({str, list, tuple, dict, bytes})
_PART_WEIGHT = 8


def _indexed(value: Any, key: Any) -> Any:
    try:
        return value[key]
    except IndexError:
        return None
    except TypeError:
        raise EvaluationError(f"{kind(value)} has no item {key!r}: its items are numbered") from None


def _no_field(name: str, value: Any, key: Any) -> NoReturn:
    if isinstance(value, bytes):
        raise EvaluationError(f"{name} is raw, not a document: put json.decode before it")
    raise EvaluationError(f"{name} is {kind(value)} and has no field {str(key)!r}")


def field_of(part: str) -> Callable[[Any, str], Any]:
    """Return a function for ``value.name``: ``None`` for a missing field and for a field of ``None``.

    ``part``: what its error messages call the value.
    """

    def get(value: Any, name: str) -> Any:
        if value.__class__ is dict:
            return value.get(name)
        return None if value is None else _no_field(part, value, name)

    return get


def item_of(part: str) -> Callable[[Any, Any], Any]:
    """Return a function for ``value[key]``, a field, an index or a slice; ``None`` if it is missing."""

    def get(value: Any, key: Any) -> Any:
        if value.__class__ is dict:
            return value.get(key)
        if value is None:
            return None
        return _indexed(value, key) if value.__class__ in (list, str, tuple) else _no_field(part, value, key)

    return get


def compared(part: str) -> Callable[[Any], Any]:
    """Return a function that passes a part of the record to a comparison.

    Raw data equals no text and no number: a condition on it would be the same for every record, as Go templates refuse.
    """

    def check(value: Any) -> Any:
        if value.__class__ is bytes:
            raise EvaluationError(f"{part} is raw data, which equals nothing: compare str({part}), or decode it before")
        return value

    return check


def add(left: Any, right: Any) -> Any:
    """Return ``left + right``, with a limit on the size of the resulting text or list."""
    if left.__class__ in _SIZED and right.__class__ in _SIZED:
        limit = limits.TEXT_CHARS if left.__class__ is str else limits.ITEMS
        limits.within(len(left) + len(right), limit, "the sum")
    return left + right


def multiply(left: Any, right: Any) -> Any:
    """Return ``left * right`` of numbers only: text and lists are never repeated."""
    # multiplying by a float repeats nothing, and the product has a fixed size
    if left.__class__ is float or right.__class__ is float:
        return left * right
    if left.__class__ is not int or right.__class__ is not int:
        _numbers("*", left, right)
    if left.bit_length() + right.bit_length() > limits.NUMBER_BITS:
        raise EvaluationError(f"the product would have more than {limits.NUMBER_BITS:,} bits")
    return left * right


def remainder(left: Any, right: Any) -> Any:
    """Return ``left % right`` of numbers only: text is never formatted."""
    if left.__class__ not in _NUMBERS or right.__class__ not in _NUMBERS:
        _numbers("%", left, right)
    if right.__class__ is int and right.bit_length() > limits.DIVISOR_BITS:
        _long_divisor()
    return left % right


def quotient(left: Any, right: Any) -> Any:
    """Return ``left // right`` inside a comprehension, where long divisions add up."""
    if right.__class__ is int and right.bit_length() > limits.DIVISOR_BITS:
        _long_divisor()
    return left // right


def _long_divisor() -> NoReturn:
    raise EvaluationError(f"the divisor has more than {limits.DIVISOR_BITS:,} bits")


def _numbers(operator: str, left: Any, right: Any) -> None:
    if left.__class__ not in _NUMBERS or right.__class__ not in _NUMBERS:
        raise EvaluationError(f"{operator} needs two numbers, got {kind(left)} and {kind(right)}")


def scalar(value: Any) -> Any:
    """Return a value to compare inside a comprehension.

    Raises :class:`EvaluationError` for lists and objects: comparing whole ones would make the loop quadratic.
    """
    if value.__class__ in CONTAINERS:
        raise EvaluationError(f"inside a comprehension {kind(value)} cannot be compared: compare its parts")
    return value


class WorkBudget:
    """Work budget of a comprehension; each new loop starts with a full one.

    Not thread-safe: two threads in one expression share one budget.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = limits.WORK

    def iterate(self, value: Any) -> Iterator[Any]:
        """Return an iterator over a comprehension's input, of bounded length, and reset the budget."""
        if value.__class__ not in _SIZED or value.__class__ is bytes:
            raise EvaluationError(f"a comprehension goes through a list, an object or text, not {kind(value)}")
        limits.within(len(value), limits.ITEMS, "the loop")
        self.left = limits.WORK
        return iter(value)

    def charge(self, value: Any) -> Any:
        """Return ``value`` after charging its size to the budget."""
        self.left -= len(value) if value.__class__ in _SIZED else 1
        if self.left < 0:
            raise EvaluationError(f"the comprehension touches more than {limits.WORK:,} characters and items")
        return value

    def charge_parts(self, value: Any) -> Any:
        """Return the parts of a text after charging them: each takes the memory of a separate text."""
        self.left -= _PART_WEIGHT * len(value)
        return self.charge(value)

    def charge_deep(self, value: Any) -> Any:
        """Return ``value``, which the comprehension's result will contain, after charging its full depth."""
        if value.__class__ in CONTAINERS:
            self.left -= measure(value, self.left)
        return self.charge(value)


def items(values: Iterable[Any]) -> list[Any]:
    """Return the values as a list of bounded length."""
    if values.__class__ in _SIZED:
        limits.within(len(values), limits.ITEMS, "the list")  # pyright: ignore[reportArgumentType]
    return list(values)


GUARDS: dict[str, Any] = {
    "_getattr_": field_of("the value"),
    "_getitem_": item_of("the value"),
    "slice": slice,
    "add": add,
    "multiply": multiply,
    "remainder": remainder,
    "quotient": quotient,
    "scalar": scalar,
    **{f"field_of_{part}": field_of(part) for part in PARTS},
    **{f"item_of_{part}": item_of(part) for part in PARTS},
    **{f"compared_{part}": compared(part) for part in RAW_PARTS},
}
"""Names that generated code may use, besides functions and methods."""
