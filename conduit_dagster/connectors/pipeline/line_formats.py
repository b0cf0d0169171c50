"""Records out of the lines that a ``file`` destination writes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from conduit_dagster.record import Record, decode

Parse = Callable[[bytes], Record]


def parser(name: str) -> Parse:
    """How lines of a format are read: whole records again, documents, or, of a template, raw lines.

    It raises ``ValueError`` for a line that is no record; msgspec's errors are some.
    """
    return {"opencdc/json": _whole, "payload/json": _payload}.get(name, _raw)


def _whole(line: bytes) -> Record:
    return decode(line)


def _payload(line: bytes) -> Record:
    """Raw payloads are written as they are, and may look like anything."""
    try:
        value = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError):
        return _raw(line)
    if value is None:
        return Record(0, {})
    return Record(0, {}, value) if isinstance(value, dict) else _raw(line)


def _raw(line: bytes) -> Record:
    return Record(0, {}, line)
