"""Shared code of the processors that unwrap a record from a field."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
from pydantic import AfterValidator

from conduit_dagster.config.findings import refuse
from conduit_dagster.field_reference import Reference, kind_of
from conduit_dagster.json_values import decode_json
from conduit_dagster.processors.common.conversions import to_string
from conduit_dagster.processors.common.in_place import InPlaceProcessor
from conduit_dagster.processors.common.setting_kinds import reference
from conduit_dagster.record import Data, Document, Record
from conduit_dagster.sdk import ProcessError, ProcessorContext

INVALID = "unwrap.invalid"
PAYLOADS: Final = frozenset({dict, type(None)})
"""Types of payloads that are accepted unchanged."""
_PLAIN_KEY: Final = frozenset(bytes([first]) for first in range(256) if first not in b"{ \t\n\r\v\f")
"""First bytes of raw keys that cannot be a JSON document."""


def _in_payload(text: str) -> str:
    found = reference(text.strip())
    if found.root not in ("after", "before"):
        raise refuse(
            f"{found.text} is not a payload",
            code="reference",
            fix="refer to .Payload.After, or to a field in it",
            column=0,
        )
    return found.text


PayloadField = Annotated[str, AfterValidator(_in_payload)]
"""A reference to a payload, or into one."""


class UnwrappingProcessor(InPlaceProcessor):
    """A processor that replaces the record by the one in a field of it, which is ``.Payload.After`` mostly."""

    def __init__(self, settings: Any, context: ProcessorContext) -> None:
        """``settings``: those of the subclass, with ``field``."""
        super().__init__(settings, context)
        self._field = Reference.parse(settings.field)
        if self._field.root == "after" and not self._field.path:
            self.loop = self._unwrapped

    @staticmethod
    @abstractmethod
    def _unwrapped(rest: Iterator[Any]) -> None:
        """Unwrap records whose payload is the usual document already (``loop``)."""


def document_in(record: Record, field: Reference, code: str = INVALID) -> Document:
    """Return the document in the field, which may be JSON text.

    Raises :class:`ProcessError` with ``code`` if the value is not a document, and ``FieldError``.
    """
    field.create_way(record)
    value = field.get(record)
    if isinstance(value, bytes | str):
        try:
            value = decode_json(value)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise ProcessError(f"{field.text} is not a JSON document: {error}", code=code) from None
    if not isinstance(value, dict):
        raise ProcessError(f"{field.text} is {kind_of(value)}, not a document", code=code)
    return value


def unwrapped_key(key: Data) -> Data:
    """Return the ``payload`` of a Kafka Connect key; any other key unchanged."""
    document = document_key(key)
    if not isinstance(document, dict) or "payload" not in document:
        return key
    payload: Any = document["payload"]
    if payload is None or isinstance(payload, dict):
        return payload
    return text_of(payload).encode()


def document_key(key: Data) -> Data:
    """Return the document that a raw key is as JSON; any other key unchanged."""
    if not isinstance(key, bytes) or key[:1] in _PLAIN_KEY:
        return key  # most keys: faster than a failed JSON decode
    try:
        document = decode_json(key)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return key
    return document if isinstance(document, dict) else key


def text_of(value: Any) -> str:
    """Return a value as text for metadata or a raw key: numbers in full, a list or a document as JSON."""
    if isinstance(value, list | dict):
        return msgspec.json.encode(value).decode()
    return to_string(value)


def invalid(message: str) -> ProcessError:
    """Return the error for a record that can't be unwrapped."""
    return ProcessError(message, code=INVALID)
