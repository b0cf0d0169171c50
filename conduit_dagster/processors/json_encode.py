"""``json.encode``: encode a value as JSON text."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from typing_extensions import override

from conduit_dagster.payload_code import PayloadCode
from conduit_dagster.processors.common.in_place import FieldProcessor
from conduit_dagster.processors.common.setting_kinds import ConduitSettings, DataField
from conduit_dagster.sdk import Example, ProcessorContext, Record

_encode = msgspec.json.Encoder().encode
_PAYLOAD: Final = PayloadCode("if after is not None:\n    after = encode(after)", {"encode": _encode})


class JsonEncodeSettings(ConduitSettings):
    """Settings of ``json.encode``."""

    field: DataField
    """The field to encode. `.Payload.After` becomes raw data, a field in a document text."""


class JsonEncode(FieldProcessor):
    """Encode a field's value as compact JSON.

    Keys keep their order; Conduit sorts them. Raw data is encoded as in Conduit: Base64 in quotes. A missing or null
    field is left unchanged.
    """

    name = "json.encode"
    Settings = JsonEncodeSettings
    settings: JsonEncodeSettings
    examples = (
        Example(
            "A field of a document",
            {"field": ".Payload.After.address"},
            Record("1", {}, {"address": {"zip": "10000"}}),
            Record("1", {}, {"address": '{"zip":"10000"}'}),
        ),
    )

    def __init__(self, settings: JsonEncodeSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        if self.field.root == "after" and not self.field.path:
            self.payload_code = _PAYLOAD

    @override
    def changed(self, value: Any) -> bytes | str:
        encoded = self._encoded(value)
        return encoded if self.field.holds_data else encoded.decode()

    def _encoded(self, value: Any) -> bytes:
        try:
            return _encode(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._invalid(f"cannot be encoded: {error}") from None
