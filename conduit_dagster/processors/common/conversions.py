"""Conversions of values by Go's rules, which are Conduit's: numbers, booleans and times in text, Base64."""

from __future__ import annotations

import calendar
import datetime
import math
import re
from binascii import Error, a2b_base64
from decimal import Decimal
from typing import Any, Final

from conduit_dagster.expressions import BOOLEANS, format_go

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_HEX_FLOAT: Final = re.compile(r"[+-]?0[xX][0-9a-fA-F]*\.?[0-9a-fA-F]*[pP][+-]?[0-9]+")
_TIME: Final = re.compile(
    r"(?P<day>(?P<y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d))T(?P<clock>(?P<H>\d\d?):(?P<M>\d\d):(?P<S>\d\d))"
    r"(?:[.,](?P<fraction>\d+))?(?P<zone>Z|[+-](?P<zh>\d\d):(?P<zm>\d\d))",
    re.ASCII,
)
_LEAST: Final = -(2**63)
_MOST: Final = 2**63 - 1


def to_string(value: Any) -> str:
    """Format a value as Go does: a float in positional notation, a document as ``map[a:1]``, null as ``<nil>``."""
    kind = type(value)
    if kind is str:
        return value
    if kind is int:
        return str(value)
    return _positional(value) if kind is float else format_go(value)


def to_int(value: Any) -> int:
    """Convert to a 64-bit integer. Raises ``ValueError``."""
    kind = type(value)
    if kind is str:
        value = integer(value)
    elif kind is float:
        value = int(value) if value.is_integer() else _refuse()
    elif kind is not int:
        return int(value) if kind is bool else _refuse()
    return value if _LEAST <= value <= _MOST else _refuse()


def to_float(value: Any) -> float:
    """Convert to a finite 64-bit float. Raises ``ValueError`` or ``OverflowError``."""
    kind = type(value)
    if kind is str:
        value = _float(value)
    elif kind is int or kind is bool:
        value = float(value)
    elif kind is not float:
        return _refuse()
    return value if math.isfinite(value) else _refuse()


def to_bool(value: Any) -> bool:
    """Convert the words that Go's ``ParseBool`` accepts, and the numbers 1 and 0. Raises ``ValueError``."""
    if value is True or value is False:
        return value
    word = to_string(value)
    return BOOLEANS[word] if word in BOOLEANS else _refuse()


def to_time(value: Any) -> str:
    """Convert to RFC 3339 text without trailing zeros in its fraction. Raises ``ValueError``."""
    text = to_string(value)
    if _INTEGER.fullmatch(text):
        return _from_nanoseconds(to_int(text))
    parts = _TIME.fullmatch(text)
    if parts is None or not _is_time(parts):
        return _refuse()
    # Go takes an hour of one digit, reads nine digits of the fraction and drops the rest
    return _rfc3339(f"{parts['day']}T{parts['clock'].zfill(8)}", (parts["fraction"] or "")[:9], parts["zone"])


def _refuse() -> Any:
    raise ValueError


def integer(text: str) -> int:
    """Convert decimal digits with an optional sign, to an integer of any size. Raises ``ValueError``."""
    # int() alone would also accept blanks, underscores and the digits of other scripts
    return int(text) if (text.isdigit() and text.isascii()) or _INTEGER.fullmatch(text) else _refuse()


def _float(text: str) -> float:
    if not text.isascii() or text.strip() != text:
        return _refuse()
    try:
        return float(text)
    except ValueError:
        return float.fromhex(text) if _HEX_FLOAT.fullmatch(text) else _refuse()


def _positional(value: float) -> str:
    text = repr(value)
    if "e" in text:
        text = format(Decimal(text), "f")
    return text.removesuffix(".0")


def _is_time(parts: re.Match[str]) -> bool:
    month, day = int(parts["m"]), int(parts["d"])
    if not 1 <= month <= 12 or not 1 <= day <= calendar.monthrange(int(parts["y"]), month)[1]:
        return False
    in_day = int(parts["H"]) < 24 and int(parts["M"]) < 60 and int(parts["S"]) < 60
    # Go reads a zone of 24 hours, and then fails at writing it
    return in_day and int(parts["zh"] or 0) < 24 and int(parts["zm"] or 0) < 60


def _from_nanoseconds(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    return _rfc3339(moment.isoformat(timespec="seconds"), f"{rest:09}", "Z")


def _rfc3339(moment: str, fraction: str, zone: str) -> str:
    digits = fraction.rstrip("0")
    return moment + (f".{digits}" if digits else "") + ("Z" if zone[1:] == "00:00" else zone)


_BREAKS: Final = b"\r\n"


def decode_base64(text: str | bytes) -> bytes:
    """Decode Base64. Raises ``binascii.Error``, or ``UnicodeError`` for characters beyond ASCII."""
    data = text.encode("ascii") if isinstance(text, str) else text
    return quick_base64(data.translate(None, _BREAKS).decode("ascii"))


def quick_base64(text: str) -> bytes:
    """Decode Base64 without line breaks. Raises ``ValueError``, also for some text valid in :func:`decode_base64`."""
    if len(text) % 4 or text[-3:] == "===":  # Python ignores excess padding
        raise Error("Incorrect padding")
    return a2b_base64(text, strict_mode=True)
