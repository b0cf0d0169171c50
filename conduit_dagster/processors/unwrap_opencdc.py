"""``unwrap.opencdc``: unwrap an OpenCDC record from a field."""

from __future__ import annotations

import binascii
from collections.abc import Iterator
from typing import Any, Final

from typing_extensions import override

from conduit_dagster.field_reference import kind_of
from conduit_dagster.payload_code import NoFitError
from conduit_dagster.processors.common.conversions import decode_base64, quick_base64
from conduit_dagster.processors.common.setting_kinds import ConduitSettings, Field
from conduit_dagster.processors.common.unwrapping import PAYLOADS, UnwrappingProcessor, document_in, invalid, text_of
from conduit_dagster.record import OPERATIONS, Data, Document
from conduit_dagster.sdk import Example, Record

_TEXT: Final = {str}


class UnwrapOpencdcSettings(ConduitSettings):
    """Settings of ``unwrap.opencdc``."""

    field: Field = ".Payload.After"
    """The field that holds the record, as a document or as JSON."""


class UnwrapOpencdc(UnwrappingProcessor):
    """Replace the record by the OpenCDC record in one of its fields, except for its position.

    For records that passed through another system in the layout of ``opencdc/json``: raw data is Base64 text. A record
    without an operation, metadata or payload is nacked.
    """

    name = "unwrap.opencdc"
    Settings = UnwrapOpencdcSettings
    settings: UnwrapOpencdcSettings
    examples = (
        Example(
            "From JSON",
            {},
            Record("7", {"kafka.topic": "t"}, b'{"operation": "update", "metadata": {"m": "x"}, "key": "MQ==",'
                   b' "payload": {"before": null, "after": {"id": 1}}}'),
            Record("7", {"m": "x"}, {"id": 1}, b"1", None, "update"),
        ),
        Example("Something else", {}, Record("7", {}, {"id": 1}), "unwrap.invalid"),
    )  # fmt: skip

    @override
    def change(self, record: Record) -> None:
        inner = document_in(record, self._field)
        operation, metadata = _operation(inner), _metadata(inner)
        payload = _part(inner, "payload")
        key, before, after = _data(inner, "key"), _data(payload, "before"), _data(payload, "after")
        record.operation, record.metadata = operation, metadata
        record.key, record.before, record.after = key, before, after

    @staticmethod
    @override
    def _unwrapped(rest: Iterator[Any]) -> None:
        """Unwrap records that are already OpenCDC documents, with text as metadata and documents as payloads."""
        for record in rest:
            inner = record.after
            operation, metadata, payload = inner["operation"], inner["metadata"], inner["payload"]
            key, before, after = inner.get("key"), payload.get("before"), payload.get("after")
            if type(metadata) is not dict or type(before) not in PAYLOADS or type(after) not in PAYLOADS:
                raise NoFitError
            if operation not in OPERATIONS or (metadata and set(map(type, metadata.values())) != _TEXT):
                raise NoFitError
            if type(key) is str:
                key = quick_base64(key)
            elif type(key) not in PAYLOADS:
                raise NoFitError
            record.operation, record.metadata = operation, metadata
            record.key, record.before, record.after = key, before, after


def _operation(inner: Document) -> str:
    operation = inner.get("operation")
    if operation not in OPERATIONS:
        message = "the record has no operation" if operation is None else f"operation {operation!r} is unknown"
        raise invalid(f"{message}: one of {', '.join(OPERATIONS)}")
    return operation


def _metadata(inner: Document) -> dict[str, str]:
    return {key: text_of(value) for key, value in _part(inner, "metadata").items()}


def _part(inner: Document, name: str) -> Document:
    value = inner.get(name)
    if not isinstance(value, dict):
        message = f"the record has no {name}" if value is None else f"its {name} is {kind_of(value)}, not a document"
        raise invalid(message)
    return value


def _data(inner: Document, name: str) -> Data:
    value: Any = inner.get(name)
    if value is None or isinstance(value, dict):
        return value
    if isinstance(value, str):
        try:
            return decode_base64(value)
        except (binascii.Error, UnicodeError) as error:
            raise invalid(f"its {name} is not Base64: {error}") from None
    raise invalid(f"its {name} is {kind_of(value)}, not a document or Base64 text")
