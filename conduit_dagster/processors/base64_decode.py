"""``base64.decode``: decode Base64 to text or bytes."""

from __future__ import annotations

import binascii
from typing import Any

from typing_extensions import override

from conduit_dagster.field_reference import kind_of
from conduit_dagster.payload_code import PayloadCode
from conduit_dagster.processors.common.conversions import decode_base64, quick_base64
from conduit_dagster.processors.common.in_place import FieldProcessor
from conduit_dagster.processors.common.setting_kinds import ChangeableField, ConduitSettings
from conduit_dagster.sdk import Example, Record


class Base64DecodeSettings(ConduitSettings):
    """Settings of ``base64.decode``."""

    field: ChangeableField
    """The field to decode, such as `.Payload.After.photo`. `.Position` cannot be decoded."""


class Base64Decode(FieldProcessor):
    """Decode a field from Base64 (the standard alphabet, with padding; line breaks are ignored).

    A whole payload or the key becomes raw data. Within a document and in metadata the bytes must be UTF-8 text,
    otherwise the record is nacked: a document can't hold other bytes, which Conduit would replace. A missing or null
    field stays unchanged.
    """

    name = "base64.decode"
    Settings = Base64DecodeSettings
    settings: Base64DecodeSettings
    examples = (
        Example(
            "A field of a document",
            {"field": ".Payload.After.name"},
            Record("1", {}, {"name": "aGVsbG8="}),
            Record("1", {}, {"name": "hello"}),
        ),
        Example("No Base64", {"field": ".Payload.After.name"}, Record("1", {}, {"name": "!"}), "base64.decode.invalid"),
    )

    @override
    def _code(self, name: str) -> PayloadCode:
        change = f"after[{name!r}] = quick_base64(value).decode()"
        source = f"value = after.get({name!r})\nif value is not None:\n    {change}"
        return PayloadCode(source, {"quick_base64": quick_base64})

    @override
    def changed(self, value: Any) -> Any:
        if not isinstance(value, bytes | str):
            raise self._invalid(f"is {kind_of(value)}, not text")
        decoded = self._decoded(value)
        return decoded if self.field.holds_data else self._text(decoded)

    def _decoded(self, value: bytes | str) -> bytes:
        try:
            return decode_base64(value)
        except (UnicodeError, binascii.Error) as error:
            reason = "it holds characters beyond ASCII" if isinstance(error, UnicodeError) else str(error)
            raise self._invalid(f"is not Base64: {reason}") from None

    def _text(self, decoded: bytes) -> Any:
        try:
            return decoded.decode()
        except UnicodeDecodeError as error:
            raise self._invalid(f"is not UTF-8 text once decoded ({error.reason}); a whole payload may be") from None
