"""The columns of a block of records: values checked against their types and converted to Arrow."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any, NamedTuple

from conduit_dagster.field_reference import kind_of
from conduit_dagster.record import Record
from conduit_dagster.spark.sql.query import ColumnType, arrow, ddl

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
    """Raised for a value that its type can't hold."""

    def __init__(self, expected: str, got: Any, path: str = "") -> None:
        super().__init__(expected)
        self.expected, self.got, self.path = expected, got, path

    def below(self, step: str) -> TypeMisfit:
        """Return the same misfit with its path extended by the enclosing document or list."""
        return TypeMisfit(self.expected, self.got, step + self.path)

    def said(self, name: str) -> str:
        """Return the message for the nack. It names the kind of the value, never the value, which may be a secret."""
        return f"the field {name}{self.path} is not {self.expected}, but {kind_of(self.got)}"


def plain(kind: ColumnType) -> frozenset[type]:
    """Return the Python types whose values Arrow accepts unchanged, or refuses itself."""
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


PART_OF: Mapping[str, Callable[[Record], Any]] = {
    "_metadata": lambda record: list(record.metadata.items()),
    "_operation": lambda record: record.operation,
    "_position": lambda record: str(record.position),
}
"""Parts of a record that a query may use besides the fields, in the form that Arrow accepts."""


class SqlBlock(NamedTuple):
    """A query's input for a block of records."""

    misfits: Mapping[int, str]
    """The first misfit of each record that does not fit, by the record's index in the block."""
    arrays: list[Any]
    """Arrow arrays of the columns that the query uses, for the records that fit; at least one array."""


class Columns:
    """The declared columns, and the columns that a query uses."""

    def __init__(self, columns: Mapping[str, ColumnType], parts: Mapping[str, ColumnType], used: Sequence[str]) -> None:
        self._columns = {name: _Column(name, kind) for name, kind in columns.items()}
        self._parts = {name: parts[name] for name in used if name in parts and name not in columns}
        self._used = used

    def block(self, records: Sequence[Record]) -> SqlBlock:
        """Return the query's input; each value is checked once. Every ``record.after`` must be a document."""
        import pyarrow as pa

        misfits: dict[int, str] = {}
        arrays: dict[str, Any] = {}
        for name, column in self._columns.items():
            arrays[name], found = column.array(records)
            for place, misfit in found.items():
                misfits.setdefault(place, misfit.said(name))
        for name, kind in self._parts.items():
            arrays[name] = pa.array(list(map(PART_OF[name], records)), arrow(kind))
        chosen = [arrays[name] for name in self._used] or [pa.nulls(len(records), pa.bool_())]
        if misfits:
            fitting = pa.array([place for place in range(len(records)) if place not in misfits], pa.int64())
            chosen = [array.take(fitting) for array in chosen]
        return SqlBlock(misfits, chosen)


class _Column:
    def __init__(self, name: str, kind: ColumnType) -> None:
        self._name, self._kind = name, kind
        self._plain, self._fit = plain(kind), fitter(kind)

    def array(self, records: Sequence[Any]) -> tuple[Any, dict[int, TypeMisfit]]:
        """Return the values as an Arrow array, with null for misfits, and the misfits by index."""
        import pyarrow as pa

        name = self._name
        values = [record.after.get(name) for record in records]
        is_plain = self._plain and self._plain.issuperset(map(type, values))
        if is_plain and (taken := self._taken(values)) is not None:
            return taken, {}
        fitted: list[Any] = []
        misfits: dict[int, TypeMisfit] = {}
        for place, value in enumerate(values):
            try:
                fitted.append(self._fit(value))
            except TypeMisfit as misfit:
                fitted.append(None)
                misfits[place] = misfit
        return pa.array(fitted, arrow(self._kind)), misfits

    def _taken(self, values: list[Any]) -> Any:
        """Return plain values as an Arrow array; None if Arrow refuses one, such as an integer that is too large."""
        import pyarrow as pa

        if self._kind == "double" and not all(map(math.isfinite, filter(None, values))):
            return None
        try:
            return pa.array(values, arrow(self._kind))
        except (pa.ArrowException, OverflowError, ValueError):
            return None
