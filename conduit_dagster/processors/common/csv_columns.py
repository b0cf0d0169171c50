"""Columns of CSV: their names, the types that their text is converted to, and conversion of rows to documents."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import repeat
from typing import Any, Final

from conduit_dagster.config.findings import refuse
from conduit_dagster.expressions import BOOLEANS
from conduit_dagster.processors.common.conversions import integer
from conduit_dagster.readable import excerpt
from conduit_dagster.record import Document
from conduit_dagster.sdk import ProcessError

TYPES: Final = ("string", "int", "float", "bool")
_PLAIN: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")
_NUMBER: Final = re.compile(_PLAIN.pattern + r"(?:[eE][+-]?[0-9]+)?")
_PLAIN_CHARACTERS: Final = "0123456789.+-"
"""For text of only these characters, ``float`` accepts exactly what ``_PLAIN`` does."""
_SAFE_DIGITS: Final = 15
"""A 64-bit float keeps every decimal number with this many digits, unless an exponent takes it out of range."""
_MOST_DIGITS: Final = 800
"""Maximum number of significant digits of a 64-bit float."""
_SHOWN_NAMES: Final = 12


def csv_error(part: str, what: str) -> ProcessError:
    """Return the error that nacks a record, with code ``csv.decode.PART``."""
    return ProcessError(what, code=f"csv.decode.{part}")


def columns_of(text: str) -> dict[str, str]:
    """Parse the setting ``columns``, one line of CSV of ``NAME`` or ``NAME:TYPE``, to types by name. Raises a finding.

    A column without a type is ``string``.
    """
    line = text.strip().replace("\n", " ")
    try:
        [items] = csv.reader([line], skipinitialspace=True, strict=True) if line else [list[str]()]
    except csv.Error as error:
        raise refuse(f"the list of columns is not valid CSV: {error}", fix='such as id:int, "last, first"') from None
    found: dict[str, str] = {}
    for item in items:
        before, colon, kind = item.rpartition(":")
        name, kind = (before.strip(), kind.strip()) if colon else (item.strip(), "string")
        _check_column(name, kind, found)
        found[name] = kind
    return found


def _check_column(name: str, kind: str, found: Mapping[str, str]) -> None:
    if not name:
        raise refuse("a column has no name", fix="such as id:int, name, amount:float")
    if kind not in TYPES:
        raise refuse(f"there is no type {kind}", fix=f"one of {', '.join(TYPES)}; a name with a colon needs one")
    if name in found:
        raise refuse(f"the column {name} is listed twice", fix="name each column once")


class CsvColumns:
    """Columns of the lines of a file."""

    def __init__(self, names: Sequence[str], kinds: Mapping[str, str], nulls: str) -> None:
        """``kinds``: types by name; other columns are text. ``nulls``: the text that means null."""
        self._names, self._nulls = list(names), nulls
        self._count = len(self._names)
        self._kinds = [kinds.get(name, "string") for name in names]

    @staticmethod
    def with_header(names: Sequence[str], kinds: Mapping[str, str], nulls: str) -> CsvColumns:
        """Return the columns named in a header. Raises ``ProcessError`` for a header that does not fit ``kinds``."""
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise csv_error("header", f"is of a file whose header names a column twice: {excerpt(twice[0])}")
        missing = [name for name in kinds if name not in names]
        if missing:
            raise csv_error("header", f"is of a file whose header has no column {missing[0]!r}, but {_listed(names)}")
        return CsvColumns(names, kinds, nulls)

    def document(self, row: list[str]) -> Document:
        """Return a row as a document. Raises ``ProcessError``."""
        if len(row) != self._count:
            fields = "1 field" if len(row) == 1 else f"{len(row)} fields"
            raise csv_error("fields", f"has {fields}, not {self._count} ({_listed(self._names)})")
        if row == self._names and self._count > 1:
            raise csv_error(
                "header", "repeats the names of the columns: if it is the header, set header: true at the file source"
            )
        values = map(self._value, self._names, self._kinds, row)
        return dict(zip(self._names, values, strict=True))

    def documents(self, rows: list[list[str]]) -> list[Document]:
        """Return all rows as documents, like :meth:`document`. Raises some error if that raises for one of them."""
        if set(map(len, rows)) != {self._count} or (self._count > 1 and self._names in rows):
            raise ValueError
        columns = [
            self._values(column, kind) for column, kind in zip(zip(*rows, strict=True), self._kinds, strict=True)
        ]
        return list(map(dict, map(zip, repeat(self._names), zip(*columns, strict=True))))

    def _values(self, column: Sequence[str], kind: str) -> Sequence[Any]:
        if self._nulls not in column:
            return _COLUMNS[kind](column)
        values = iter(_COLUMNS[kind]([text for text in column if text != self._nulls]))
        return [None if text == self._nulls else next(values) for text in column]

    def _value(self, name: str, kind: str, text: str) -> Any:
        if text == self._nulls:
            return None
        try:
            return _CONVERSIONS[kind](text)
        except (ValueError, ArithmeticError, KeyError) as error:
            reason = f", {error}" if isinstance(error, _LossyError) else ""
            raise csv_error("type", f"has no {kind} in the column {name}: {excerpt(text)}{reason}") from None


class _LossyError(ValueError):
    """Raised for a number that its type can't represent."""


def to_float(text: str) -> float:
    """Convert a decimal number to the nearest 64-bit float. Raises ``ValueError`` if digits would be lost."""
    if len(text) <= _SAFE_DIGITS and _PLAIN.fullmatch(text):
        return float(text)
    if not _NUMBER.fullmatch(text):
        raise ValueError
    value = float(text)
    if not _keeps(value, text):
        raise _LossyError("which a 64-bit float does not keep: leave it a string")
    return value


def _keeps(value: float, text: str) -> bool:
    """Return whether the float, written with the same number of digits or as few as identify it, is the same number."""
    if not math.isfinite(value):
        return False
    exact = Decimal(text)
    digits = len(exact.as_tuple().digits)
    if digits > _MOST_DIGITS:
        return False
    # the shortest form may round differently from the form with the same number of digits
    return exact in (Decimal(repr(value)), Decimal(f"{value:.{digits - 1}e}"))


_CONVERSIONS: Final[Mapping[str, Callable[[str], Any]]] = {
    "string": str,
    "int": integer,
    "float": to_float,
    "bool": BOOLEANS.__getitem__,
}


def _ints(column: Sequence[str]) -> Sequence[int]:
    text = "".join(column)
    is_plain = text.isdigit() and text.isascii()
    return list(map(int if is_plain else integer, column))


def _floats(column: Sequence[str]) -> Sequence[float]:
    is_plain = not "".join(column).strip(_PLAIN_CHARACTERS) and max(map(len, column), default=0) <= _SAFE_DIGITS
    return list(map(float if is_plain else to_float, column))


_COLUMNS: Final[Mapping[str, Callable[[Sequence[str]], Sequence[Any]]]] = {
    "string": lambda column: column,
    "int": _ints,
    "float": _floats,
    "bool": lambda column: [BOOLEANS[text] for text in column],
}
"""Conversions of whole columns. They raise some error if one value can't be converted."""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN_NAMES]) + (", …" if len(names) > _SHOWN_NAMES else "")
