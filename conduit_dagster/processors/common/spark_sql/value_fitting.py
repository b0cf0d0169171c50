"""Checks of field values against their declared types, and conversion for Arrow. Nothing is rounded or truncated."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

from conduit_dagster.field_reference import kind_of
from conduit_dagster.spark.sql.types import ColumnType, ddl

Fit = Callable[[Any], Any]
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
_EXACT = Context(prec=400)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_PLAIN: Mapping[str, frozenset[type]] = {
    "boolean": frozenset({bool, type(None)}),
    **{name: frozenset({int, type(None)}) for name in _BITS},
    "double": frozenset({float, type(None)}),
    "string": frozenset({str, type(None)}),
}


class TypeMisfit(Exception):  # noqa: N818  # names a value that does not fit
    """A value that its type cannot hold."""

    def __init__(self, expected: str, got: Any, path: str = "") -> None:
        super().__init__(expected)
        self.expected, self.got, self.path = expected, got, path

    def below(self, step: str) -> TypeMisfit:
        """Return the same misfit with its path extended by the enclosing document or list."""
        return TypeMisfit(self.expected, self.got, step + self.path)

    def said(self, name: str) -> str:
        """Return the message for the nack. It names the kind of the value, not the value: it may be a secret."""
        return f"the field {name}{self.path} is no {self.expected}, but {kind_of(self.got)}"


def plain(kind: ColumnType) -> frozenset[type]:
    """Return the Python types whose values Arrow takes unchanged, or refuses by itself."""
    return _PLAIN.get(kind, frozenset()) if isinstance(kind, str) else frozenset()


def fitter(kind: ColumnType) -> Fit:
    """Return a function that converts a value for Arrow or raises :class:`TypeMisfit`. Null fits every type."""
    fit = _simple(kind) if isinstance(kind, str) else _composite(kind)
    return lambda value: None if value is None else fit(value)


def _simple(kind: str) -> Fit:
    if kind in _BITS:
        return _integer(kind, 1 << (_BITS[kind] - 1))
    return {
        "boolean": _boolean, "double": _double, "string": _string, "date": _date, "timestamp": _timestamp,
        "timestamp_ntz": _timestamp_ntz,
    }[kind]  # fmt: skip


def _integer(kind: str, limit: int) -> Fit:
    def fit(value: Any) -> int:
        if type(value) is not int or not -limit <= value < limit:
            raise TypeMisfit(kind.upper(), value)
        return value

    return fit


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeMisfit("BOOLEAN", value)
    return value


def _double(value: Any) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    # an integer that a double would round does not fit
    if type(value) is int and abs(value) <= 1 << 1023 and int(float(value)) == value:
        return float(value)
    raise TypeMisfit("DOUBLE", value)


def _string(value: Any) -> str:
    if type(value) is not str:
        raise TypeMisfit("STRING", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TypeMisfit("STRING of well-formed text", value) from None
    return value


def _date(value: Any) -> date:
    try:
        if type(value) is str and _DATE.fullmatch(value):
            return date.fromisoformat(value)
    except ValueError:
        pass
    raise TypeMisfit("DATE, such as 2024-12-31", value)


def _moment(value: Any, zoned: bool) -> datetime | None:
    found = _TIME.fullmatch(value) if type(value) is str else None
    if found is None or (found[1] is not None) is not zoned:
        return None
    try:
        moment = datetime.fromisoformat(value)
        return moment.astimezone(UTC) if zoned else moment
    except (ValueError, OverflowError):
        return None


def _timestamp(value: Any) -> datetime:
    if (moment := _moment(value, zoned=True)) is None:
        raise TypeMisfit("TIMESTAMP with a zone and at most six decimals, such as 2024-12-31T23:59:59Z", value)
    return moment


def _timestamp_ntz(value: Any) -> datetime:
    if (moment := _moment(value, zoned=False)) is None:
        raise TypeMisfit("TIMESTAMP_NTZ with no zone and at most six decimals, such as 2024-12-31T23:59:59", value)
    return moment


def _composite(kind: Sequence[Any]) -> Fit:
    match kind[0]:
        case "decimal":
            return _decimal(kind[1], kind[2])
        case "array":
            return _array(fitter(kind[1]))
        case "map":
            return _map(fitter(kind[1]))
        case _:
            return _struct({name: fitter(of) for name, of in kind[1]}, ddl(tuple(kind)))


def _decimal(digits: int, scale: int) -> Fit:
    unit, limit = Decimal(1).scaleb(-scale), 10**digits

    def fit(value: Any) -> Decimal:
        # the value of a JSON number is that of its shortest text
        if type(value) is int and abs(value) < limit:
            exact = Decimal(value)
        elif type(value) is float and math.isfinite(value):
            exact = Decimal(repr(value))
        else:
            raise TypeMisfit(f"DECIMAL({digits}, {scale})", value)
        sign, own, exponent = exact.normalize(_EXACT).as_tuple()
        del sign
        assert isinstance(exponent, int)
        if exact and (exponent < -scale or len(own) + exponent > digits - scale):
            raise TypeMisfit(f"DECIMAL({digits}, {scale})", value)
        return exact.quantize(unit, context=_EXACT)

    return fit


def _array(fit: Fit) -> Fit:
    def whole(value: Any) -> list[Any]:
        if type(value) is not list:
            raise TypeMisfit("ARRAY", value)
        return [_at(fit, item, f"[{place}]") for place, item in enumerate(value)]

    return whole


def _map(fit: Fit) -> Fit:
    def whole(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            raise TypeMisfit("MAP", value)
        return [(_string(key), _at(fit, item, f"[{key!r}]")) for key, item in value.items()]

    return whole


def _struct(fits: Mapping[str, Fit], text: str) -> Fit:
    def whole(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise TypeMisfit(text.upper() if len(text) < 80 else "STRUCT", value)
        return {name: _at(fit, value.get(name), f".{name}") for name, fit in fits.items()}

    return whole


def _at(fit: Fit, value: Any, step: str) -> Any:
    try:
        return fit(value)
    except TypeMisfit as misfit:
        raise misfit.below(step) from None
