"""``field.convert``: convert a field's value to another type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from typing_extensions import override

from conduit_dagster.field_reference import kind_of
from conduit_dagster.payload_code import PayloadCode
from conduit_dagster.processors.common.conversions import to_bool, to_float, to_int, to_string, to_time
from conduit_dagster.processors.common.in_place import FieldProcessor
from conduit_dagster.processors.common.setting_kinds import ConduitSettings, DataField
from conduit_dagster.readable import shortened
from conduit_dagster.sdk import Example, ProcessorContext, Record

_CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "string": to_string,
    "int": to_int,
    "float": to_float,
    "bool": to_bool,
    "time": to_time,
}


class FieldConvertSettings(ConduitSettings):
    """Settings of ``field.convert``."""

    field: DataField
    """The field to convert, such as `.Payload.After.age`."""
    type: Literal["string", "int", "float", "bool", "time"]
    """The type to convert it to. `int` is a 64-bit integer; `time` is a time as RFC 3339 text, read from such text or
    from nanoseconds since 1970.
    """


class FieldConvert(FieldProcessor):
    """Convert a field to another type by Conduit's rules: the value as text, parsed as the type.

    Text is parsed strictly: ``" 12"``, ``"1.5"`` and ``"0x10"`` are not integers. A value that can't be converted is
    nacked, and so is a missing or null field, except for ``string``, where it becomes ``<nil>``.
    """

    name = "field.convert"
    Settings = FieldConvertSettings
    settings: FieldConvertSettings
    sees_null = True
    examples = (
        Example(
            "Text to a number",
            {"field": ".Payload.After.age", "type": "int"},
            Record("1", {}, {"age": "41"}),
            Record("1", {}, {"age": 41}),
        ),
        Example(
            "What is none is nacked",
            {"field": ".Payload.After.age", "type": "int"},
            Record("1", {}, {"age": "x"}),
            "field.convert.invalid",
        ),
    )

    def __init__(self, settings: FieldConvertSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._convert = _CONVERSIONS[settings.type]

    @override
    def _code(self, name: str) -> PayloadCode:
        source = f"after[{name!r}] = convert(after.get({name!r}))"
        return PayloadCode(source, {"convert": _CONVERSIONS[self.settings.type]})

    @override
    def changed(self, value: Any) -> Any:
        try:
            return self._convert(value.decode() if isinstance(value, bytes) else value)
        except (ValueError, OverflowError):
            shown = shortened(repr(value), 60)
            raise self._invalid(f"is no {self.settings.type}: {kind_of(value)} {shown}") from None
