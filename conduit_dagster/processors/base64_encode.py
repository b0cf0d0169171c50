"""``base64.encode``: encode text or bytes as Base64."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from typing_extensions import override

from conduit_dagster.expressions import format_go
from conduit_dagster.field_reference import kind_of
from conduit_dagster.payload_code import NoFitError, PayloadCode
from conduit_dagster.processors.common.in_place import FieldProcessor
from conduit_dagster.processors.common.setting_kinds import ChangeableField, ConduitSettings
from conduit_dagster.sdk import Example, Record


class Base64EncodeSettings(ConduitSettings):
    """Settings of ``base64.encode``."""

    field: ChangeableField
    """The field to encode, such as `.Payload.After.photo`. `.Position` cannot be encoded."""


class Base64Encode(FieldProcessor):
    """Encode a field as Base64: raw data, text, or the text of a number or boolean.

    A document or a list is nacked: put json.encode before it. A missing or null field stays unchanged.
    """

    name = "base64.encode"
    Settings = Base64EncodeSettings
    settings: Base64EncodeSettings
    examples = (
        Example(
            "A field of a document",
            {"field": ".Payload.After.name"},
            Record("1", {}, {"name": "hello"}),
            Record("1", {}, {"name": "aGVsbG8="}),
        ),
        Example("A whole payload", {"field": ".Payload.After"}, Record("1", {}, b"\x00\xff"), Record("1", {}, b"AP8=")),
    )

    @override
    def _code(self, name: str) -> PayloadCode:
        change = f"after[{name!r}] = b2a_base64(value.encode(), newline=False).decode()"
        other = "if value is not None:\n    raise NoFitError"
        source = f"value = after.get({name!r})\nif value.__class__ is text:\n    {change}\nel{other}"
        return PayloadCode(source, {"text": str, "NoFitError": NoFitError, "b2a_base64": binascii.b2a_base64})

    @override
    def changed(self, value: Any) -> str:
        if isinstance(value, dict | list):
            raise self._invalid(f"is {kind_of(value)}, not text or raw data: put json.encode before it")
        try:
            data = value if isinstance(value, bytes) else format_go(value).encode()
        except UnicodeEncodeError:
            raise self._invalid("holds half a character (a lone surrogate)") from None
        return base64.b64encode(data).decode()
