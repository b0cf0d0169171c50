"""Check of values that fastavro would write as something else: 5.5 as the long 5, any text as true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Fits = Callable[[Any], bool]
_BITS: Final = {"int": 31, "long": 63}
_MOST_FLOAT: Final = 3.4028235677973366e38


def lossless(schema: Any, names: dict[str, Fits]) -> Fits:
    """Return a check that a value is written as it is. What fastavro itself refuses may pass.

    ``names`` collects the checks of named types, which a schema may refer to.
    """
    if isinstance(schema, list):
        return _any  # fastavro checks which branch of a union fits
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return lossless(kind, names)
    if kind == "record":
        return _record(schema, names)
    if kind == "array":
        return _list(lossless(schema["items"], names))
    if kind == "map":
        return _map(lossless(schema["values"], names))
    return _SIMPLE.get(kind) or (lambda value: names.get(kind, _any)(value))


def _record(schema: Any, names: dict[str, Fits]) -> Fits:
    checks: list[tuple[str, Fits]] = []

    def fits(value: Any) -> bool:
        return type(value) is not dict or all(name not in value or check(value[name]) for name, check in checks)

    names[schema["name"]] = fits
    found = [(field["name"], lossless(field["type"], names)) for field in schema["fields"]]
    checks += [(name, check) for name, check in found if check is not _any]
    return fits


def _list(item: Fits) -> Fits:
    return _any if item is _any else lambda value: type(value) is not list or all(map(item, value))


def _map(inner: Fits) -> Fits:
    return _any if inner is _any else lambda value: type(value) is not dict or all(map(inner, value.values()))


def _any(_: Any) -> bool:
    return True


def _whole(kind: str) -> Fits:
    least, most = -(1 << _BITS[kind]), (1 << _BITS[kind]) - 1
    # text may be a date, which fastavro reads; any other it refuses
    return lambda value: type(value) is str or (type(value) is int and least <= value <= most)


def _float(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _MOST_FLOAT


_SIMPLE: Final[dict[str, Fits]] = {
    "int": _whole("int"),
    "long": _whole("long"),
    "boolean": lambda value: type(value) is bool,
    "float": _float,
    "double": lambda value: type(value) in (int, float),
    **dict.fromkeys(("null", "string", "bytes", "enum", "fixed"), _any),
}
