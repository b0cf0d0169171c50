"""Texts of a document as times, decimals and bytes of Avro, in the forms that ``avro.decode`` gives.

fastavro converts them while it writes: in its schema, their types have logical types of ours. A text of another form
stays a text, which no such type takes.
"""

from __future__ import annotations

import datetime
import re
from base64 import b64encode
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from fastavro.write import LOGICAL_WRITERS

from conduit_dagster.processors.common.conversions import decode_base64

_OURS: Final = "conduit-dagster-"
_BASE64: Final = "base64"
_CONTAINERS: Final = frozenset({"record", "array", "map"})
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_CLOCK: Final = re.compile(r"(?P<clock>\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d+))?", re.ASCII)
_MOMENT: Final = re.compile(rf"(?P<day>{_DAY.pattern})T{_CLOCK.pattern}(?P<zone>Z|[+-]\d\d:\d\d)?", re.ASCII)
_NUMBER: Final = re.compile(r"(?P<whole>[+-]?\d+)(?:\.(?P<fraction>\d+))?", re.ASCII)
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_SECOND: Final = datetime.timedelta(seconds=1)
_Convert = Callable[[str, Any], int | bytes]
"""Conversion of a text, with its type's schema. Raises ``ValueError`` or ``OverflowError`` for one of another form."""


class _Texts:
    """Copies of schemas, with the types that were named before."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def schema(self, schema: Any) -> Any:
        if isinstance(schema, list):
            of_branch = self._beside_text if any(map(self._is_text, schema)) else self.schema
            return [of_branch(branch) for branch in schema]
        if isinstance(schema, str):
            return _of_ours({"type": schema}) if schema == "bytes" else schema
        if not isinstance(schema["type"], str):
            return self.schema(schema["type"])
        # without the marks of a parsed schema
        copied = {key: value for key, value in schema.items() if not key.startswith("__")}
        self._named[schema.get("name", "")] = schema
        if "fields" in schema:
            copied["fields"] = [self._field(field) for field in schema["fields"]]
        for part in ("items", "values"):
            if part in schema:
                copied[part] = self.schema(schema[part])
        return _of_ours(copied)

    def _beside_text(self, branch: Any) -> Any:
        if self._kind(branch)["type"] in _CONTAINERS:
            return self.schema(branch)
        # without its logical type: fastavro fails for a text that is no date
        return {k: v for k, v in branch.items() if k != "logicalType"} if isinstance(branch, dict) else branch

    def _field(self, field: dict[str, Any]) -> dict[str, Any]:
        copied = {**field, "type": self.schema(field["type"])}
        return {**copied, "default": self._default(field["type"], field["default"])} if "default" in field else copied

    def _default(self, schema: Any, value: Any) -> Any:
        """Return a default with texts in place of its bytes: the schema has a character for each of these."""
        kind = self._kind(schema)
        if isinstance(value, str):
            # a character beyond 255 is no byte: such a default stays as it is, and can't be written
            is_bytes = kind["type"] in ("bytes", "fixed") and max(value, default="") <= "\xff"
            return _text_of(value.encode("latin-1"), kind) if is_bytes else value
        if isinstance(value, list):
            return [self._default(kind["items"], one) for one in value]
        if not isinstance(value, dict):
            return value
        of = {field["name"]: field["type"] for field in kind.get("fields", ())}
        return {name: self._default(of.get(name, kind.get("values")), one) for name, one in value.items()}

    def _kind(self, schema: Any) -> dict[str, Any]:
        """Return a type as a dictionary; of a union the first, which its default is of."""
        if isinstance(schema, list):
            return self._kind(schema[0])
        if isinstance(schema, str):
            return self._named.get(schema, {"type": schema})
        return schema if isinstance(schema["type"], str) else self._kind(schema["type"])

    def _is_text(self, branch: Any) -> bool:
        kind = self._kind(branch)
        return kind["type"] == "enum" or (kind["type"] == "string" and kind.get("logicalType") != "uuid")


def with_texts(schema: Any) -> Any:
    """Return a copy of a parsed schema, to be parsed again, by which fastavro takes such texts.

    Next to a string or an enum in a union, each text is one of these.
    """
    return _Texts().schema(schema)


def form_of(schema: Any) -> str:
    """Return the name of a type in such a copy, with an example of its texts, for a message."""
    if not isinstance(schema, dict):
        return str(schema)
    logical = str(schema.get("logicalType", "")).removeprefix(_OURS)
    if logical == "decimal":
        return f"a decimal as text, of {schema['precision']} digits, {schema.get('scale', 0)} behind the point"
    if logical == _BASE64:
        return f"Base64 of {schema['size']} bytes" if "size" in schema else "Base64"
    return f"{logical}, such as {_EXAMPLES[logical]}" if logical in _EXAMPLES else str(schema["type"])


def _of_ours(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with our logical type, if there is one."""
    kind, logical = schema["type"], schema.get("logicalType", "")
    if kind in ("bytes", "fixed") and logical != "decimal":
        logical = _BASE64
    return {**schema, "logicalType": _OURS + logical} if (kind, logical) in _CONVERSIONS else schema


def _text_of(data: bytes, schema: dict[str, Any]) -> str:
    if schema.get("logicalType") != "decimal":
        return b64encode(data).decode()
    return format(Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-schema.get("scale", 0)), "f")


def _matched(form: re.Pattern[str], text: str) -> re.Match[str]:
    if parts := form.fullmatch(text):
        return parts
    raise ValueError


def _scaled(whole: int, fraction: str | None, digits: int) -> int:
    """Return a number in units of its last digit. Raises ``ValueError`` for a fraction of more digits."""
    kept = (fraction or "").rstrip("0")
    if len(kept) > digits:
        raise ValueError
    return whole * 10**digits + int(kept.ljust(digits, "0") or 0)


def _date(text: str, _: Any) -> int:
    return datetime.date.fromisoformat(_matched(_DAY, text)[0]).toordinal() - _EPOCH.toordinal()


def _time(digits: int) -> _Convert:
    def convert(text: str, _: Any) -> int:
        parts = _matched(_CLOCK, text)
        of_day = datetime.time.fromisoformat(parts["clock"])
        return _scaled(of_day.hour * 3600 + of_day.minute * 60 + of_day.second, parts["fraction"], digits)

    return convert


def _timestamp(digits: int, *, is_local: bool = False) -> _Convert:
    def convert(text: str, _: Any) -> int:
        parts = _matched(_MOMENT, text)
        if (parts["zone"] is None) is not is_local:
            raise ValueError
        moment = datetime.datetime.fromisoformat(f"{parts['day']}T{parts['clock']}{parts['zone'] or 'Z'}")
        return _scaled((moment - _EPOCH) // _SECOND, parts["fraction"], digits)

    return convert


def _decimal(text: str, schema: Any) -> bytes:
    parts = _matched(_NUMBER, text)
    unscaled = _scaled(abs(int(parts["whole"])), parts["fraction"], schema.get("scale", 0))
    if len(str(unscaled)) > schema["precision"]:
        raise ValueError
    number = -unscaled if text.startswith("-") else unscaled
    size = schema["size"] if schema["type"] == "fixed" else (unscaled.bit_length() + 8) // 8
    return number.to_bytes(size, "big", signed=True)


def _base64(text: str, schema: Any) -> bytes:
    data = decode_base64(text)
    if len(data) != schema.get("size", len(data)):
        raise ValueError
    return data


def _writer(convert: _Convert) -> Callable[[Any, Any], Any]:
    takes = (str, int) if convert is _decimal else (str,)

    def prepared(value: Any, schema: Any) -> Any:
        if type(value) not in takes:
            return value
        try:
            return convert(str(value), schema)
        except (ValueError, OverflowError):
            return value

    return prepared


_CONVERSIONS: Final[dict[tuple[str, str], _Convert]] = {
    ("int", "date"): _date,
    ("int", "time-millis"): _time(3),
    ("long", "time-micros"): _time(6),
    ("long", "timestamp-millis"): _timestamp(3),
    ("long", "timestamp-micros"): _timestamp(6),
    ("long", "local-timestamp-millis"): _timestamp(3, is_local=True),
    ("long", "local-timestamp-micros"): _timestamp(6, is_local=True),
    ("bytes", "decimal"): _decimal,
    ("fixed", "decimal"): _decimal,
    ("bytes", _BASE64): _base64,
    ("fixed", _BASE64): _base64,
}
_EXAMPLES: Final = {
    "date": "2024-01-02",
    "time-millis": "03:04:05.006",
    "time-micros": "03:04:05.000006",
    "timestamp-millis": "2024-01-02T03:04:05.006Z",
    "timestamp-micros": "2024-01-02T03:04:05.000006Z",
    "local-timestamp-millis": "2024-01-02T03:04:05.006",
    "local-timestamp-micros": "2024-01-02T03:04:05.000006",
}
LOGICAL_WRITERS.update({f"{of}-{_OURS}{name}": _writer(convert) for (of, name), convert in _CONVERSIONS.items()})
