"""Values that fastavro would change: it writes 5.5 as the long 5, rounds 2**60 + 1, and takes any text as a UUID."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import fastavro
from fastavro.validation import validate

from conduit_dagster.whole_numbers import is_exact

Fits = Callable[[Any], bool]
_MOST_FLOAT: Final = 3.4028235677973366e38
_MOST_DOUBLE: Final = 1 << 1023


class _Record(NamedTuple):
    """A record's check, with its fields, and with its schema as fastavro takes it."""

    fits: Fits
    fields: frozenset[str]
    schema: Any


class Names:
    """Types that are named in a schema, which it may refer to."""

    def __init__(self) -> None:
        self.schemas: dict[str, Any] = {}
        """By name, as fastavro collects them."""
        self.records: dict[str, _Record] = {}

    def record(self, kind: Any, schema: Any) -> _Record | None:
        """Return the record that a branch of a union is, or names."""
        return self.records.get(schema["name"] if kind == "record" else kind)


def lossless(schema: Any) -> Fits:
    """Return a check that a value is written unchanged. Values that fastavro itself refuses may pass.

    ``schema``: what is not parsed yet.
    """
    names = Names()
    return _lossless(fastavro.parse_schema(schema, names.schemas), names)


def _lossless(schema: Any, names: Names) -> Fits:
    if isinstance(schema, list):
        return _union(schema, names)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return _lossless(kind, names)
    if kind == "record":
        return _record(schema, names)
    if kind == "array":
        return _list(_lossless(schema["items"], names))
    if kind == "map":
        return _map(_lossless(schema["values"], names))
    if kind == "string" and isinstance(schema, dict) and schema.get("logicalType") == "uuid":
        return _uuid
    return _SIMPLE.get(kind) or (lambda value: names.records[kind].fits(value) if kind in names.records else True)


def _union(branches: list[Any], names: Names) -> Fits:
    """Return a check by the branch that fastavro takes; it refuses by itself what fits no branch."""
    checks = [(_kind(branch), branch, _lossless(branch, names)) for branch in branches]
    numbers = [(_TAKES[kind], check) for kind, _, check in checks if kind in _TAKES]
    lists = [check for kind, _, check in checks if kind == "array"]
    maps = [check for kind, _, check in checks if kind == "map"]
    records = [found for kind, branch, _ in checks if (found := names.record(kind, branch))]
    texts = [check for kind, _, check in checks if kind in _TEXTS] if any(c is _uuid for *_, c in checks) else []
    if not numbers and not lists and not maps and not records and not texts:
        return _any
    documents = [*maps, _of_several(records)] if len(records) > 1 else [*maps, *(one.fits for one in records)]
    of_type = {dict: documents, list: lists, str: texts}

    def fits(value: Any) -> bool:
        if type(value) in (int, float):
            return next((check(value) for takes, check in numbers if takes(value)), True)
        inner = of_type.get(type(value))
        return not inner or any(check(value) for check in inner)

    return fits


def _of_several(records: list[_Record]) -> Fits:
    """Return a check that the record with most of a document's fields takes it.

    fastavro writes the best one of those that take it, which may be one that has none of its fields.
    """

    def fits(value: Any) -> bool:
        shared = [len(record.fields & value.keys()) for record in records]
        most = max(shared)
        best = [record for record, of_it in zip(records, shared, strict=True) if of_it == most]
        taking = (record.fits(value) for record in best if validate(value, record.schema, raise_errors=False))
        return next(taking, False) if most or not value else False

    return fits


def _kind(schema: Any) -> Any:
    return _kind(schema["type"]) if isinstance(schema, dict) else schema


class _TypeCheck(frozenset[type]):
    """Check of the value's type alone. Records and lists test set membership directly, which is faster."""

    def __call__(self, value: Any) -> bool:
        return type(value) in self


def _record(schema: Any, names: Names) -> Fits:
    types: list[tuple[str, _TypeCheck]] = []
    checks: list[tuple[str, Fits]] = []

    def fits(value: Any) -> bool:
        if type(value) is not dict:
            return True
        for name, accepted in types:
            if name in value and type(value[name]) not in accepted:
                return False
        for name, check in checks:  # noqa: SIM110  # all() is slower, and this runs for every record
            if name in value and not check(value[name]):
                return False
        return True

    fields = frozenset(field["name"] for field in schema["fields"])
    known = {**schema, "__fastavro_parsed": True, "__named_schemas": names.schemas}
    names.records[schema["name"]] = _Record(fits, fields, known)  # before its fields, which may refer to it
    for field in schema["fields"]:
        check = _lossless(field["type"], names)
        if isinstance(check, _TypeCheck):
            types.append((field["name"], check))
        elif check is not _any:
            checks.append((field["name"], check))
    return fits


def _list(item: Fits) -> Fits:
    # fastavro would write text as the list of its characters, and an empty document as an empty list
    if item is _any:
        return _TypeCheck({list})
    if isinstance(item, _TypeCheck):
        return lambda value: type(value) is list and item.issuperset(map(type, value))
    return lambda value: type(value) is list and all(map(item, value))


def _map(inner: Fits) -> Fits:
    if inner is _any:
        return _TypeCheck({dict})
    return lambda value: type(value) is dict and all(map(inner, value.values()))


def _any(_: Any) -> bool:
    return True


def _uuid(value: Any) -> bool:
    if type(value) is not str:
        return False
    try:
        uuid.UUID(value)
    except ValueError:
        return False
    return True


def _int(value: Any) -> bool:
    # fastavro writes more than 32 bits, but only for a long
    return -(1 << 31) <= value < 1 << 31 if type(value) is int else type(value) is str


def _float(value: Any) -> bool:
    if type(value) not in (int, float) or not abs(value) < _MOST_FLOAT:
        return False
    return type(value) is float or is_exact(value, 24)


def _double(value: Any) -> bool:
    if type(value) is float:
        return True
    if type(value) is not int:
        return False
    return abs(value) < _MOST_DOUBLE and is_exact(value, 53)


_TAKES: Final[dict[Any, Fits]] = {
    "int": lambda value: type(value) is int and -(1 << 31) <= value < 1 << 31,
    "long": lambda value: type(value) is int and -(1 << 63) <= value < 1 << 63,
    "float": _any,
    "double": _any,
}
"""Which numbers fastavro writes by a branch of a union; it takes the first branch that fits."""
_TEXTS: Final = frozenset({"string", "bytes", "enum", "fixed", "int", "long"})
"""Types that fastavro may write a text as."""
_SIMPLE: Final[dict[str, Fits]] = {
    "int": _int,
    "long": _TypeCheck({int, str}),  # text may be a date or time, which fastavro parses; it refuses any other
    "boolean": _TypeCheck({bool}),
    "float": _float,
    "double": _double,
    "null": _TypeCheck({type(None)}),
    **dict.fromkeys(("string", "bytes", "enum", "fixed"), _any),
}
