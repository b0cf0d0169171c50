"""JSON text as Conduit accepts it: unescaped control characters and lone surrogates are no errors."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, Final

import msgspec

_decode = msgspec.json.Decoder().decode
_HALF: Final = re.compile("[\ud800-\udfff]")
_LENIENT: Final = re.compile(rb"[\x00-\x1f](?!\Z)|\\u[dD]")
"""Found in all text that Conduit accepts and msgspec does not."""


def decode_json(text: bytes | str) -> Any:
    """Decode JSON; a lone surrogate becomes U+FFFD.

    Raises ``msgspec.DecodeError``, ``UnicodeError`` or ``RecursionError``.
    """
    try:
        return _decode(text)
    except msgspec.DecodeError:
        if isinstance(text, bytes) and not _LENIENT.search(text):
            raise
        with suppress(ValueError, msgspec.DecodeError):
            return _decode(_escaped(text))
        raise


def _escaped(text: bytes | str) -> str:
    value = json.loads(text if isinstance(text, str) else text.decode(), strict=False)
    return _HALF.sub("\ufffd", json.dumps(value, ensure_ascii=False))
