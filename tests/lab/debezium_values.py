"""Values from Debezium beside ours: each intended difference is one function here."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

Schema = dict[str, Any]
UNAVAILABLE = "__debezium_unavailable_value"
SOURCE_TYPE = "__debezium.source.column.type"
"""Parameter of a column's schema, with ``datatype.propagate.source.type``."""
_EPOCH = datetime(1970, 1, 1)
_INTERVAL = re.compile("P{}{}{}(?:T{}{}{})?".format(*(rf"(?:([-.\d]+){unit})?" for unit in "YMDHMS")))
_JSON_NULL = "null"
_MICROS = 9223372036825200000
_GREGORIAN = -12212553600000000
"""1583 in microseconds: earlier times that Debezium copies use the Julian calendar, those in changes do not."""


class UnlikeError(Exception):
    """Raised if Debezium's value can't be compared: it holds less information than the column."""


def day(days: int) -> str:
    """Convert days since 1970; ours is ISO 8601, which needs no schema to be read."""
    try:
        return (date(1970, 1, 1) + timedelta(days)).isoformat()
    except OverflowError:
        # infinity has overflowed in Debezium
        raise UnlikeError(days) from None


def hour(micros: int) -> str:
    """Convert microseconds since midnight; ours is the time as text."""
    seconds, rest = divmod(micros, 10**6)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}" + _fraction(rest)


def moment(micros: int) -> str:
    """Convert microseconds since 1970; ours is RFC 3339 text, without a zone, like the column."""
    if abs(micros) >= _MICROS - 1:
        return "infinity" if micros > 0 else "-infinity"
    if micros < _GREGORIAN:
        raise UnlikeError("of another calendar")
    seconds, rest = divmod(micros, 10**6)
    return (_EPOCH + timedelta(seconds=seconds)).isoformat() + _fraction(rest)


def moment_of_millis(millis: int) -> str:
    """Convert milliseconds, which Debezium uses for columns with up to three fractional digits."""
    return moment(millis * 1_000)


def instant(text: str) -> str:
    """Convert RFC 3339 in UTC, common to both; ours has no trailing zeros in the fraction, as in PostgreSQL."""
    if text[:4] < "1583":
        raise UnlikeError("of another calendar")
    return re.sub(r"\.?0+Z$", "Z", text) if "." in text else text


def hour_in_utc(text: str) -> str:
    """Convert a ``timetz``, which Debezium turns into UTC, losing its offset; ours keeps it, as PostgreSQL does."""
    found = re.fullmatch(r"(\d+):(\d+):(\d+)(?:\.(\d+))?(?:Z|([-+])(\d\d)(?::(\d\d))?)", text)
    assert found is not None, text
    away = (int(found[6] or 0) * 60 + int(found[7] or 0)) * (-1 if found[5] == "-" else 1)
    minutes = (int(found[1]) * 60 + int(found[2]) - away) % 1440
    return hour((minutes * 60 + int(found[3])) * 10**6 + int((found[4] or "").ljust(6, "0")))


def span(text: str) -> tuple[int, int, Decimal]:
    """Parse ISO 8601, common to both; Debezium also writes parts that are zero."""
    found = _INTERVAL.fullmatch(text)
    assert found is not None, text
    years, months, days, hours, minutes, seconds = (Decimal(part or 0) for part in found.groups())
    return int(years * 12 + months), int(days), hours * 3600 + minutes * 60 + seconds


def document(text: str) -> Any:
    """Parse JSON, which is text in Debezium; ours is a document that processors can access. JSON's null is null."""
    return json.loads(text)


def hexadecimal(text: str) -> str:
    """Convert bytes, Base64 in Debezium; ours is PostgreSQL's own text, which a ``bytea`` column accepts."""
    return rf"\x{base64.b64decode(text).hex()}"


def number_of_bits(text: str) -> int:
    """Convert bits, little-endian bytes in Debezium without leading zeros; ours is text of zeros and ones."""
    return int.from_bytes(base64.b64decode(text), "little")


def bit(value: bool) -> str:
    """Convert a single bit, a boolean in Debezium; ours is text, as for other lengths."""
    return "1" if value else "0"


def number(text: str) -> str:
    """Convert a number: text in both with ``decimal.handling.mode=string``; Debezium writes NaN in capitals."""
    return {"NAN": "NaN", "POSITIVE_INFINITY": "Infinity", "NEGATIVE_INFINITY": "-Infinity"}.get(text, text)


def amount(text: str) -> str:
    """Convert money, a number in Debezium; ours is PostgreSQL's text, with the currency of its ``lc_monetary``."""
    return text.replace("$", "").replace(",", "")


def single(value: Any) -> str:
    """Convert a ``real``, which has seven digits; Java may write more of them than necessary."""
    return repr(struct.unpack("f", struct.pack("f", float(value)))[0])


def double(value: Any) -> str:
    """Convert a double: NaN and infinities are text in both, since JSON has none; as text, 0 and -0 differ as well."""
    return repr(float(value))


def point(value: Any) -> Any:
    """Convert a point, a structure with its WKB in Debezium; ours is PostgreSQL's text."""
    return value if isinstance(value, str) else f"({value['x']:g},{value['y']:g})"


def unknown(text: str) -> str:
    """Decode types unknown to Debezium, the bytes of their text (``include.unknown.datatypes``)."""
    return base64.b64decode(text).decode()


def no_comparison(value: Any) -> Any:
    """Refuse to compare: Debezium has Java class names for inner arrays, and other numbers for boxes."""
    raise UnlikeError(value)


def dictionary(text: str) -> Any:
    """Parse ``hstore``, a document as text in Debezium; ours is the document."""
    return json.loads(text)


def same(value: Any) -> Any:
    """Return values that are equal in both: booleans, integers, text, ranges, enums, addresses and the like."""
    return value


class Rule(NamedTuple):
    """Conversions that make both values comparable."""

    theirs: Callable[[Any], Any]
    ours: Callable[[Any], Any] = same


_NAMED = {
    "io.debezium.time.Date": Rule(day),
    "io.debezium.time.MicroTime": Rule(hour),
    "io.debezium.time.Timestamp": Rule(moment_of_millis),
    "io.debezium.time.MicroTimestamp": Rule(moment),
    "io.debezium.time.ZonedTimestamp": Rule(instant),
    "io.debezium.time.ZonedTime": Rule(hour_in_utc, hour_in_utc),
    "io.debezium.time.Interval": Rule(span, span),
    "io.debezium.data.Json": Rule(document),
    "io.debezium.data.Bits": Rule(number_of_bits, lambda text: int(text, 2)),
    "io.debezium.data.geometry.Point": Rule(point),
}
_TYPED = {
    "BIT": Rule(bit),
    "NUMERIC": Rule(number),
    "MONEY": Rule(amount, amount),
    "FLOAT4": Rule(single, single),
    "FLOAT8": Rule(double, double),
    "BYTEA": Rule(hexadecimal),
    "HSTORE": Rule(dictionary),
    "_BOX": Rule(no_comparison),
}


def compared(schema: Schema, theirs: Any, ours: Any) -> tuple[Any, Any]:
    """Return both values in comparable form. Raises ``UnlikeError`` if Debezium's holds less information."""
    if theirs is None or (ours is None and theirs != _JSON_NULL):
        return theirs, ours
    kind = schema.get("parameters", {}).get(SOURCE_TYPE, "")
    if schema["type"] == "array" and kind not in _TYPED:
        return _elements(schema["items"], kind, (theirs, ours))
    rule = _NAMED.get(schema.get("name", "")) or _TYPED.get(kind)
    if rule is None:
        rule = Rule(unknown) if schema["type"] == "bytes" else Rule(same)
    return rule.theirs(theirs), rule.ours(ours)


def _elements(schema: Schema, kind: str, both: tuple[Any, Any]) -> tuple[Any, Any]:
    theirs, ours = both
    if any(isinstance(one, list) for one in ours):
        return no_comparison(theirs)
    if len(theirs) != len(ours):
        return theirs, ours
    inner = {**schema, "parameters": {**schema.get("parameters", {}), SOURCE_TYPE: kind.lstrip("_")}}
    pairs = [compared(inner, their, our) for their, our in zip(theirs, ours, strict=True)]
    return [their for their, _ in pairs], [our for _, our in pairs]


def is_unavailable(value: Any) -> bool:
    """Return whether it is Debezium's placeholder for a large value that an update did not touch, in any form."""
    text = base64.b64encode(UNAVAILABLE.encode()).decode()
    return value in (UNAVAILABLE, text, [UNAVAILABLE], json.dumps(UNAVAILABLE))


def _fraction(micros: int) -> str:
    return f".{micros:06}".rstrip("0") if micros else ""
