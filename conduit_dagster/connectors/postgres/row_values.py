"""Decoding of PostgreSQL's text format into values of documents, and generated functions for whole rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec

from conduit_dagster.record import Document

Decode = Callable[[bytes], Any]
"""Decoder of a column's text."""

SET_SESSION: Final = """
    SELECT set_config(name, value, false) FROM (
        VALUES ('DateStyle', 'ISO, YMD'), ('TimeZone', 'UTC'), ('IntervalStyle', 'iso_8601'), ('lc_monetary', 'C'),
            ('bytea_output', 'hex'), ('extra_float_digits', '1'), ('client_encoding', 'UTF8'), ('row_security', 'off'),
            ('client_min_messages', 'warning')
    ) own (name, value)
"""
"""Sets a session to the text format decoded here, and to the warnings that a reader needs: in one round trip."""


_json = msgspec.json.Decoder().decode
# faster than int() and float() by far, and just as exact
_integer: Final = msgspec.json.Decoder(int).decode
_integers: Final = msgspec.json.Decoder(list[int]).decode
_float: Final = msgspec.json.Decoder(float).decode
_FROM_UTC: Final = bytes.maketrans(b" +", b"TZ")


text: Final = bytes.decode
"""Decoder of text."""


def _number(value: bytes) -> float | str:
    try:
        # the JSON decoder drops the sign of a negative zero
        return _float(value) or float(value)
    except msgspec.DecodeError:
        # JSON has no NaN and no infinities: they stay text, which PostgreSQL accepts as input
        return value.decode()


def _timestamp(value: bytes) -> str:
    """Return ``2024-02-29T12:00:00``; values outside RFC 3339 (infinity, BC) keep PostgreSQL's text."""
    return value.decode().replace(" ", "T", 1) if len(value) < 32 and value[-1:].isdigit() else value.decode()


def _zoned(value: bytes) -> str:
    """Return ``2024-02-29T12:00:00Z``."""
    if value[-3:] == b"+00":
        return value[:-2].translate(_FROM_UTC).decode()
    return value.decode()


def _document(value: bytes) -> Any:
    try:
        return _json(value)
    except (msgspec.DecodeError, RecursionError):
        # PostgreSQL accepts numbers that no float can hold, and any depth; their text stays exact
        return value.decode()


class Dictionary:
    """Decoder of ``hstore``: a document of strings."""

    _PAIR = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:NULL|"((?:[^"\\]|\\.)*)")', re.DOTALL)
    _ESCAPED = re.compile(r"\\(.)", re.DOTALL)

    def __call__(self, value: bytes) -> dict[str, str | None]:
        """Decode ``"a"=>"1", "b"=>NULL``."""
        plain = self._ESCAPED.sub
        return {
            plain(r"\1", key): None if inner is None else plain(r"\1", inner)
            for key, inner in ((found[1], found[2]) for found in self._PAIR.finditer(value.decode()))
        }


class Elements:
    """Decoder of an array: a list, and lists of lists where it has several dimensions."""

    _TOKEN = re.compile(r'[{}]|"((?:[^"\\]|\\.)*)"|([^{}",]+)|,', re.DOTALL)
    _ESCAPED = re.compile(r"\\(.)", re.DOTALL)

    def __init__(self, element: Decode) -> None:
        self._element = element

    def __call__(self, value: bytes) -> list[Any]:
        """Decode ``{1,NULL,3}``; lower bounds other than 1, as in ``[0:2]={…}``, are left out."""
        whole = value.decode()
        open_ones: list[list[Any]] = [[]]
        for token in self._TOKEN.finditer(whole, whole.index("{")):
            mark = whole[token.start()]
            if mark == "{":
                open_ones.append([])
            elif mark == "}":
                done = open_ones.pop()
                open_ones[-1].append(done)
            elif mark != ",":
                open_ones[-1].append(self._value(token))
        return open_ones[0][0]

    def _value(self, token: re.Match[str]) -> Any:
        if token[1] is not None:
            return self._element(self._ESCAPED.sub(r"\1", token[1]).encode())
        return None if token[2] == "NULL" else self._element(token[2].encode())


_INTEGERS = (20, 21, 23, 26, 28, 5069)
_FLOATS = (700, 701)
_DOCUMENTS = (114, 3802)
_BASE: Final[dict[int, Decode]] = {
    16: lambda value: value == b"t",
    **dict.fromkeys(_INTEGERS, _integer),
    **dict.fromkeys(_FLOATS, _number),
    **dict.fromkeys(_DOCUMENTS, _document),
    1114: _timestamp,
    1184: _zoned,
}
"""Decoders by type OID. All other types are text: numeric, dates, times, uuid, inet, ranges, bytea (``\\x…``)."""
_ARRAYS: Final = {
    1000: 16, 1005: 21, 1007: 23, 1016: 20, 1028: 26, 1021: 700, 1022: 701, 199: 114, 3807: 3802, 1115: 1114,
    1185: 1184, 1001: 17, 1002: 18, 1003: 19, 1009: 25, 1014: 1042, 1015: 1043, 1041: 869, 651: 650, 1040: 829,
    775: 774, 1182: 1082, 1183: 1083, 1270: 1266, 1187: 1186, 1231: 1700, 2951: 2950, 791: 790, 1561: 1560,
    1563: 1562, 3905: 3904, 3907: 3906, 3909: 3908, 3911: 3910, 3913: 3912, 3927: 3926, 143: 142, 3643: 3614,
    3645: 3615, 1017: 600, 1018: 601, 1019: 602, 1027: 604, 719: 718, 629: 628, 4073: 4072,
}  # fmt: skip
"""Element types of the built-in array types. Arrays of boxes, the only ones separated by ``;``, stay text."""
_SEPARATOR = b"\0"
"""A byte that PostgreSQL's text never contains."""


def _text_column(cells: Sequence[bytes]) -> list[Any]:
    return _SEPARATOR.join(cells).decode().split("\0")


def _integer_column(cells: Sequence[bytes]) -> list[Any]:
    return _integers(b"[%b]" % b",".join(cells))


def _timestamp_column(cells: Sequence[bytes]) -> list[Any]:
    whole = _SEPARATOR.join(cells)
    # the text of BC dates and of infinity
    if b"C" in whole or b"y" in whole:
        return list(map(_timestamp, cells))
    return whole.translate(_FROM_UTC).decode().split("\0")


def _zoned_column(cells: Sequence[bytes]) -> list[Any]:
    ends = b"+00" + _SEPARATOR
    whole = _SEPARATOR.join((*cells, b""))
    if whole.count(ends) != len(cells):
        return list(map(_zoned, cells))
    return whole.replace(ends, b"Z" + _SEPARATOR).translate(_FROM_UTC).decode().split("\0")[:-1]


_COLUMNS: Final[dict[Decode, Callable[[Sequence[bytes]], list[Any]]]] = {
    text: _text_column,
    _integer: _integer_column,
    _timestamp: _timestamp_column,
    _zoned: _zoned_column,
}


def column_values(cells: Sequence[bytes], decode: Decode) -> list[Any]:
    """Decode one or more non-null values of a column: same result as ``decode`` on each value, but faster."""
    whole = _COLUMNS.get(decode)
    return list(map(decode, cells)) if whole is None else whole(cells)


FIRST_OWN = 16_384
"""First OID of user-defined types: only the catalog describes them."""


class OwnType(NamedTuple):
    """Catalog entry of a user-defined type."""

    kind: str
    """``pg_type.typtype``: ``d`` a domain, ``b`` a base type, ``e`` an enum, ``c`` a composite, ``r`` a range."""
    name: str
    base: int
    """The type of a domain's values, else 0."""
    element: int
    """The type of an array's elements, else 0, as where another sign than a comma separates them."""


def decoder_of(oid: int, own_type: Callable[[int], OwnType | None]) -> Decode:
    """Return the decoder of a type; ``own_type`` looks up a user-defined type."""
    if oid < FIRST_OWN:
        if oid in _ARRAYS:
            return Elements(decoder_of(_ARRAYS[oid], own_type))
        return _BASE.get(oid, text)
    found = own_type(oid)
    if found is None:
        return text
    if found.kind == "d":
        return decoder_of(found.base, own_type)
    if found.element:
        element = decoder_of(found.element, own_type)
        # a list in it would be another dimension: domains over arrays stay text within arrays
        return text if isinstance(element, Elements) else Elements(element)
    return Dictionary() if found.name == "hstore" else text


ReadRow = Callable[[bytes, int], tuple[Document, int]]
"""Reader of the row at an offset of a message: returns the row and the offset of its end. Unchanged large values
(TOAST) that the server did not send are left out."""
BuildRows = Callable[[Sequence[Sequence[Any]]], list[Document]]
"""Builder of rows from columns of values."""

_NULL, _TEXT = b"nt"
_NOT_SENT: Final = object()
_READ = """
def read(message, at):
    at += 2
    is_whole = True
{columns}
    row = {{{items}}}
    return row if is_whole else sent(row), at
"""
_COLUMN = """
    if message[at] == {TEXT}:
        begin = at + 5
        at = begin + size_at(message, at + 1)[0]
        value{place} = decode{place}(message[begin:at])
    else:
        if message[at] == {NULL}:
            value{place} = None
        else:
            value{place}, is_whole = NOT_SENT, False
        at += 1
"""


def row_reader(columns: Sequence[tuple[str, Decode]]) -> ReadRow:
    """Return a reader of ``pgoutput`` rows with these columns (name and decoder)."""
    places = range(len(columns))
    source = _READ.format(
        columns="".join(_COLUMN.format(place=place, TEXT=_TEXT, NULL=_NULL) for place in places),
        items=_items([name for name, _ in columns]),
    )
    known = {f"decode{place}": decode for place, (_, decode) in enumerate(columns)}
    return _made(source, "read", {"size_at": Struct(">I").unpack_from, "NOT_SENT": _NOT_SENT, "sent": _sent, **known})


def row_builder(names: Sequence[str]) -> BuildRows:
    """Return a builder of rows with these columns."""
    values = "".join(f"value{place}, " for place in range(len(names)))
    return _made(
        f"def build(columns): return [{{{_items(names)}}} for {values} in zip(*columns, strict=True)]", "build", {}
    )


def _items(names: Sequence[str]) -> str:
    # repr makes a name a string literal, whatever characters it has: it can't inject code
    return ", ".join(f"{name!r}: value{place}" for place, name in enumerate(names))


def _made(source: str, name: str, known: dict[str, Any]) -> Any:
    exec(compile(source, "<columns of a table>", "exec"), known)
    return known[name]


def _sent(row: Document) -> Document:
    return {name: value for name, value in row.items() if value is not _NOT_SENT}
