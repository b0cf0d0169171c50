"""``json.decode``: decode JSON text."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from typing_extensions import override

from conduit_dagster.field_reference import Reference, kind_of
from conduit_dagster.json_values import decode_json
from conduit_dagster.payload_code import PayloadCode
from conduit_dagster.processors.common.in_place import FieldProcessor, if_present
from conduit_dagster.processors.common.setting_kinds import ConduitSettings, DataField
from conduit_dagster.readable import excerpt
from conduit_dagster.sdk import Example, ProcessorContext, Record

_ANY: Final = {"decode": msgspec.json.Decoder().decode}
_MARK: Final = b"\xef\xbb\xbf"
_BLANK: Final = (b"", b"\r", "")


class JsonDecodeSettings(ConduitSettings):
    """Settings of ``json.decode``."""

    field: DataField
    """The field that holds JSON, such as `.Payload.After`: raw data, or text in a document."""


class JsonDecode(FieldProcessor):
    """Decode the JSON in a field. Keys keep their order and integers of any length stay exact.

    A payload or the key accepts a document; a JSON string becomes raw data, ``null`` and empty data (also a lone
    carriage return) become null; a list, number or boolean is nacked. A field inside a document accepts any JSON. A
    field that is missing, null or already a document is left unchanged. Of duplicate keys the last one wins. As in
    Conduit, control characters in text need no escape, and a lone surrogate becomes U+FFFD.
    """

    name = "json.decode"
    Settings = JsonDecodeSettings
    settings: JsonDecodeSettings
    examples = (
        Example(
            "A whole payload",
            {"field": ".Payload.After"},
            Record("1", {}, b'{"id": 1}'),
            Record("1", {}, {"id": 1}),
        ),
        Example("No JSON", {"field": ".Payload.After"}, Record("1", {}, b"hello"), "json.decode.invalid"),
    )

    def __init__(self, settings: JsonDecodeSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self.payload_code = _code(self.field)

    @override
    def changed(self, value: Any) -> Any:
        if isinstance(value, bytes | str):
            return self._decoded(value)
        if isinstance(value, dict):
            return value
        raise self._invalid(f"is {kind_of(value)}, not JSON text")

    def _decoded(self, text: bytes | str) -> Any:
        try:
            # a line of a file with CRLF ends keeps its carriage return: a blank one still counts as blank
            value = None if text in _BLANK else decode_json(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise self._invalid(f"is not JSON: {_reason(error, text)}; it begins with {excerpt(text)}") from None
        if self.field.holds_data and isinstance(value, list | int | float):
            raise self._invalid(f"is JSON but not a document: {kind_of(value)}, {excerpt(text)}")
        return value


def _code(field: Reference) -> PayloadCode | None:
    if field.root != "after" or len(field.path) > 1:
        return None
    if field.path:
        name = repr(field.path[0])
        return PayloadCode(f"text = after.get({name})\nif text is not None:\n    after[{name}] = decode(text)", _ANY)
    # with this type, anything but a document raises
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    return if_present(PayloadCode("after = decode(after)", {"decode": decode}))


def _reason(error: Exception, text: bytes | str) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if unfit := _unfit(text):
        return f"it is not UTF-8 ({unfit})"
    if isinstance(text, bytes) and text.startswith(_MARK):
        return "a byte-order mark stands before it"
    return str(error).removeprefix("JSON is malformed: ")


def _unfit(text: bytes | str) -> UnicodeError | None:
    """Return why a text is not UTF-8, which msgspec raises with a place before 0.23 only."""
    try:
        text.decode() if isinstance(text, bytes) else text.encode()
    except UnicodeError as error:
        return error
    return None
