"""Whole numbers as floating-point numbers: which of them a float or a double has, and which it changes."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Final, Literal

FloatBits = Literal[24, 53]
"""Bits of the digits of a float and of a double."""
_LONGEST: Final = {24: 9, 53: 17}
"""So many decimal digits tell each number of the type from its neighbours."""


def is_exact(number: int, bits: FloatBits) -> bool:
    """Return whether a whole number is one of the type."""
    try:
        return abs(number) <= 1 << bits or _stored(number, bits) == number
    except OverflowError:
        return False


def loses_digits(number: int, bits: FloatBits) -> bool:
    """Return whether a column of floats changes a whole number, which may be an id.

    It keeps the numbers of its type, and the shortest texts of these, as JavaScript and Go write them: 2^60 is
    1152921504606847000 there. A number beyond the type's range counts as changed.
    """
    if is_exact(number, bits):
        return False
    try:
        return Decimal(_shortest(_stored(number, bits), bits)) != number
    except OverflowError:
        return True


def _stored(number: float, bits: FloatBits) -> float:
    return struct.unpack("f", struct.pack("f", number))[0] if bits == 24 else float(number)


def _shortest(stored: float, bits: FloatBits) -> str:
    texts = (f"{stored:.{digits}g}" for digits in range(1, _LONGEST[bits]))
    return next((text for text in texts if _stored(float(text), bits) == stored), f"{stored:.{_LONGEST[bits]}g}")
