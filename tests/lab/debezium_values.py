"""Values as Debezium tells them, and what ours are beside them: each difference that is meant is one function here."""

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
"""1583 in microseconds: earlier times that Debezium copies are of the Julian calendar, those in changes are not."""


class UnlikeError(Exception):
    """Debezium's value can't be compared: it holds less than the column does."""


def day(days: int) -> str:
    """Days since 1970: ours is ISO 8601, which needs no schema to be read."""
    try:
        return (date(1970, 1, 1) + timedelta(days)).isoformat()
    except OverflowError:
        # infinity has overflown there
        raise UnlikeError(days) from None


def hour(micros: int) -> str:
    """Microseconds since midnight: ours is the time as text."""
    seconds, rest = divmod(micros, 10**6)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}" + _fraction(rest)


def moment(micros: int) -> str:
    """Microseconds since 1970: ours is RFC 3339's text, without a zone, as the column has none."""
    if abs(micros) >= _MICROS - 1:
        return "infinity" if micros > 0 else "-infinity"
    if micros < _GREGORIAN:
        raise UnlikeError("of another calendar")
    seconds, rest = divmod(micros, 10**6)
    return (_EPOCH + timedelta(seconds=seconds)).isoformat() + _fraction(rest)


def moment_of_millis(millis: int) -> str:
    """Columns with up to three digits of a second are milliseconds there."""
    return moment(millis * 1_000)


def instant(text: str) -> str:
    """RFC 3339 in UTC on both sides; ours has no zeros at the end of the fraction, as PostgreSQL writes it."""
    if text[:4] < "1583":
        raise UnlikeError("of another calendar")
    return re.sub(r"\.?0+Z$", "Z", text) if "." in text else text


def hour_in_utc(text: str) -> str:
    """A ``timetz`` becomes UTC there, and loses its offset; ours keeps it, as PostgreSQL does."""
    found = re.fullmatch(r"(\d+):(\d+):(\d+)(?:\.(\d+))?(?:Z|([-+])(\d\d)(?::(\d\d))?)", text)
    assert found is not None, text
    away = (int(found[6] or 0) * 60 + int(found[7] or 0)) * (-1 if found[5] == "-" else 1)
    minutes = (int(found[1]) * 60 + int(found[2]) - away) % 1440
    return hour((minutes * 60 + int(found[3])) * 10**6 + int((found[4] or "").ljust(6, "0")))


def span(text: str) -> tuple[int, int, Decimal]:
    """ISO 8601 on both sides; Debezium writes parts that are zero as well."""
    found = _INTERVAL.fullmatch(text)
    assert found is not None, text
    years, months, days, hours, minutes, seconds = (Decimal(part or 0) for part in found.groups())
    return int(years * 12 + months), int(days), hours * 3600 + minutes * 60 + seconds


def document(text: str) -> Any:
    """JSON as text there; ours is a document, which processors can reach into. JSON's null is then a null as any."""
    return json.loads(text)


def hexadecimal(text: str) -> str:
    """Bytes are base64 there; ours is PostgreSQL's own text, which a ``bytea`` column takes back."""
    return rf"\x{base64.b64decode(text).hex()}"


def number_of_bits(text: str) -> int:
    """Bits are little-endian bytes there, and lose the zeros in front; ours is text of zeros and ones."""
    return int.from_bytes(base64.b64decode(text), "little")


def bit(value: bool) -> str:
    """A single bit is a truth value there; ours is text as that of other lengths."""
    return "1" if value else "0"


def number(text: str) -> str:
    """With ``decimal.handling.mode=string`` both are text; NaN is in capitals there."""
    return {"NAN": "NaN", "POSITIVE_INFINITY": "Infinity", "NEGATIVE_INFINITY": "-Infinity"}.get(text, text)


def amount(text: str) -> str:
    """Money is a number there; ours is PostgreSQL's text, with the currency of its ``lc_monetary``."""
    return text.replace("$", "").replace(",", "")


def single(value: Any) -> str:
    """A ``real`` has seven digits; Java may write more of them than it takes to tell it from the next one."""
    return repr(struct.unpack("f", struct.pack("f", float(value)))[0])


def double(value: Any) -> str:
    """NaN and infinities are text on both sides, for JSON has none; as text zero and its negative differ as well."""
    return repr(float(value))


def point(value: Any) -> Any:
    """A point is a structure with its WKB there; ours is PostgreSQL's text."""
    return value if isinstance(value, str) else f"({value['x']:g},{value['y']:g})"


def unknown(text: str) -> str:
    """Types that Debezium doesn't know are the bytes of their text (``include.unknown.datatypes``)."""
    return base64.b64decode(text).decode()


def no_comparison(value: Any) -> Any:
    """Of an array with several dimensions Debezium tells Java's names of the inner arrays; of boxes, other numbers."""
    raise UnlikeError(value)


def dictionary(text: str) -> Any:
    """``hstore`` is a document as text there; ours is the document."""
    return json.loads(text)


def same(value: Any) -> Any:
    """Booleans, integers, text, ranges, enums, addresses and the like are the same."""
    return value


class Rule(NamedTuple):
    """How both values become comparable."""

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
    """Both values as far as they can be compared. Raises ``UnlikeError`` where Debezium's says less."""
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
    """A large value that an update did not touch is a placeholder there, in a form that its type takes."""
    text = base64.b64encode(UNAVAILABLE.encode()).decode()
    return value in (UNAVAILABLE, text, [UNAVAILABLE], json.dumps(UNAVAILABLE))


def _fraction(micros: int) -> str:
    return f".{micros:06}".rstrip("0") if micros else ""
