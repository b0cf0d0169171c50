"""Fields whose values must not appear in any log, list, asset or error text (``redact:`` in the pipeline file).

Also masks secrets of the settings in the texts of nacks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from conduit_dagster.expressions import format_go
from conduit_dagster.expressions.gotemplate.go_values import quoted
from conduit_dagster.field_reference import FieldError, Reference
from conduit_dagster.processors.field_convert import to_string
from conduit_dagster.record import Data, Nack, Record, copy
from conduit_dagster.secret_values import hide

MASK = "[redacted]"
_BEGINNING = 8
_MOST = 1_000
"""Maximum number of values of one record to search for in a text."""


class Redaction:
    """Masks the values of some fields in records and texts, and known secrets in texts. Falsy without fields."""

    def __init__(self, fields: Sequence[str]) -> None:
        """``fields`` as :meth:`Reference.parse` reads them."""
        self._fields = [Reference.parse(text) for text in fields]

    def __bool__(self) -> bool:
        return bool(self._fields)

    def record(self, record: Record) -> Record:
        """Return a copy without the redacted values. A raw payload that is not JSON is masked whole."""
        if not self._fields:
            return record
        made = _opened(copy(record))
        for field in self._fields:
            try:
                if field.get(made) is not None:
                    field.set(made, MASK)
            except FieldError:
                if field.root in ("after", "before", "key"):
                    setattr(made, field.root, MASK.encode())
        return made

    def nack(self, nack: Nack, *records: Record) -> Nack:
        """Return the nack, with the redacted values of these records masked in its message."""
        return Nack(nack.code, self.text(nack.message, records))

    def text(self, text: str, records: Iterable[Record]) -> str:
        """Return a text without the redacted values of these records, and without known secrets."""
        values = {value for record in records for value in islice(self._values(record), _MOST)}
        for value in sorted(values, key=len, reverse=True):
            text = _masked(text, value)
        return hide(text)

    def unnamed(self, error: BaseException) -> str:
        """Return a text for an error that names no record: its own may hold values of any record, so it is omitted."""
        return f"{type(error).__name__}; its text is left out, because it may contain redacted values"

    def _values(self, record: Record) -> Iterator[str]:
        if not self._fields:
            return
        opened = _opened(copy(record))
        for field in self._fields:
            try:
                yield from _texts(field.get(opened))
            except FieldError:
                yield from _texts(getattr(opened, field.root, None))


def _masked(message: str, text: str) -> str:
    """Mask every occurrence of a value, and of the beginning of a long one: messages truncate long values."""
    if len(text) <= _BEGINNING:
        # whole words only: masks 5, but not the neighbouring 15
        return re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", MASK, message)
    place = message.find(text[:_BEGINNING])
    while place >= 0:
        length = next((i for i, (a, b) in enumerate(zip(message[place:], text, strict=False)) if a != b), None)
        length = min(len(message) - place, len(text)) if length is None else length
        message = message[:place] + MASK + message[place + length :]
        place = message.find(text[:_BEGINNING], place + len(MASK))
    return message


def _opened(record: Record) -> Record:
    """Return the record with raw JSON objects decoded: their fields are redacted as well."""
    for part in ("after", "before", "key"):
        value: Data = getattr(record, part)
        if isinstance(value, bytes):
            try:
                found = msgspec.json.decode(value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if isinstance(found, dict):
                setattr(record, part, found)
    return record


def _texts(value: Any) -> Iterable[str]:
    if value is None or value == "" or isinstance(value, bool):
        return
    if isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
    else:
        text = str(value)
        yield text
        # as escaped inside JSON, by Python and by Go
        forms = {json.dumps(text, ensure_ascii=plain)[1:-1] for plain in (True, False)}
        forms |= {repr(text)[1:-1], repr(text + "'\"")[1:-4], ascii(text)[1:-1], quoted(text)[1:-1]}
        if isinstance(value, float):
            forms |= {format_go(value), to_string(value), msgspec.json.encode(value).decode()}
        yield from forms - {text}
