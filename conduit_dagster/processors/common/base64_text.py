"""Base64 as Go decodes it: line breaks are skipped, anything else but the alphabet and right padding is refused."""

from __future__ import annotations

import binascii
from typing import Final

_BREAKS: Final = b"\r\n"


def decode_base64(text: str | bytes) -> bytes:
    """Decode Base64. Raises ``binascii.Error``, or ``UnicodeEncodeError`` for characters beyond ASCII."""
    data = (text.encode("ascii") if isinstance(text, str) else text).translate(None, _BREAKS)
    if len(data) % 4 or data.endswith(b"==="):  # Python ignores padding that is too long
        raise binascii.Error("Incorrect padding")
    return binascii.a2b_base64(data, strict_mode=True)
