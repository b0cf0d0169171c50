"""Base64 as Go decodes it: line breaks are skipped; only the alphabet and correct padding are accepted."""

from __future__ import annotations

from binascii import Error, a2b_base64
from typing import Final

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
