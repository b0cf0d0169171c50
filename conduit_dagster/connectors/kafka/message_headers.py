"""Headers of messages as metadata of records."""

from __future__ import annotations

import base64
import gc
from contextlib import suppress
from operator import methodcaller
from typing import Any, Final

from confluent_kafka import Message

from conduit_dagster.record import Nack

HEADER: Final = "kafka.header."
BINARY: Final = ".base64"
"""Suffix of the metadata key of a header that is not UTF-8, or whose name ends with it."""

headers_of: Final = methodcaller("headers")
"""Returns the headers of a message, or raises ``SystemError``. In code that runs often, the interpreter calls
``message.headers()`` without a look at the error that the library leaves behind, and fails somewhere later."""


def header_metadata(name: str, value: bytes | None) -> dict[str, str]:
    """Return a header as metadata: its text, or as Base64 what is no text."""
    data = value or b""
    with suppress(UnicodeDecodeError):
        # text under such a name would be decoded as Base64 where it is written again
        if not name.endswith(BINARY):
            return {HEADER + name: data.decode()}
    return {HEADER + name + BINARY: base64.b64encode(data).decode()}


def without_unreadable(message: Message, error: SystemError) -> Nack:
    """Leave out the headers that the client library has failed on, whose names are no UTF-8; return the message's nack.

    The library has kept its list of headers all the same. The tuple of such a header lacks its name, and whatever
    takes that out of it ends the process. The garbage collector passes over what a tuple lacks.
    """
    kept: list[Any] = [one for one in headers_of(message) or () if len(gc.get_referents(one)) == len(one)]
    message.set_headers(kept)
    text = f"the name of a header is not UTF-8: {_name_in(error)}"
    return Nack("kafka.header_name", text)


def _name_in(error: BaseException | None) -> str:
    while error is not None and not isinstance(error, UnicodeDecodeError):
        error = error.__cause__
    return "" if error is None else ascii(error.object)
