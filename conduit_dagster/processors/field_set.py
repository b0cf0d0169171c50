"""``field.set``: set a field to a value."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, Self

from pydantic import model_validator
from typing_extensions import override

from conduit_dagster.config.findings import refuse
from conduit_dagster.expressions import (
    Compiled,
    compile_expression,
    compile_template,
    expression_fields,
    reads_key,
    template_fields,
)
from conduit_dagster.field_reference import Reference, kind_of
from conduit_dagster.json_values import HUGE, LEAST
from conduit_dagster.payload_code import AFTER, PayloadCode
from conduit_dagster.processors.common.in_place import InPlaceProcessor, Loop
from conduit_dagster.processors.common.setting_kinds import (
    ChangeableField,
    ConduitSettings,
    Expression,
    Template,
    failure,
)
from conduit_dagster.sdk import Example, ProcessError, ProcessorContext, Record

_PLAIN: Final = frozenset({bool, type(None)})
"""Types that need no check."""
_CHECKED: Final = _PLAIN | {float}
"""Types that need no check in an expression's result: its floats are already finite."""


class FieldSetSettings(ConduitSettings):
    """Settings of ``field.set``: ``field`` and one of ``value`` and ``expression``."""

    field: ChangeableField
    """The field to set, such as `.Payload.After.kind`. It is created where it is missing, with the documents on the way
    to it. `.Position` cannot be set.
    """
    value: Template | None = None
    """The new value: a literal, or a Go template over the record. What is set is always text."""
    expression: Expression | None = None
    """The new value as a Python expression over `after`, `before`, `key`, `metadata`, `operation` and `position`, such
    as `after.amount * 100`. It keeps its type.
    """

    @model_validator(mode="after")
    def _one_value(self) -> Self:
        if (self.value is None) == (self.expression is None):
            raise refuse("exactly one of value and expression is needed", fix="give one of the two")
        return self


class FieldSet(InPlaceProcessor):
    """Set a field to a literal, to a Go template's output or to a Python expression's value.

    A document or list taken from elsewhere in the record is copied, so that later changes affect only one of the
    two. A value that JSON cannot hold, such as NaN, is a nack.
    """

    name = "field.set"
    Settings = FieldSetSettings
    settings: FieldSetSettings
    examples = (
        Example(
            "A Go template",
            {"field": ".Payload.After.label", "value": "{{ .Payload.After.name }}-{{ .Payload.After.id }}"},
            Record("1", {}, {"id": 1, "name": "Ana"}),
            Record("1", {}, {"id": 1, "name": "Ana", "label": "Ana-1"}),
        ),
        Example(
            "An expression keeps its type",
            {"field": ".Payload.After.total", "expression": "after.amount * 100"},
            Record("1", {}, {"amount": 2}),
            Record("1", {}, {"amount": 2, "total": 200}),
        ),
    )

    def __init__(self, settings: FieldSetSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._field = Reference.parse(settings.field)
        if settings.expression is not None:
            compiled = compile_expression(settings.expression, context.clock)
        else:
            compiled = compile_template(settings.value or "")
        self._value = compiled
        self._names = compiled.names | {self._field.root}
        self.payload_code = self._code(compiled)
        self.loop = None if self.payload_code else self._loop(compiled)

    @property
    @override
    def reads_key(self) -> bool:
        return reads_key(self._names)

    @override
    def made_of(self, field: str) -> Collection[str] | None:
        if self._field.root != "after" or (self._field.path and self._field.path[0] != field):
            return (field,)
        text = self.settings.expression
        read = template_fields(self.settings.value or "") if text is None else expression_fields(text)
        if read is None or not self._field.path:
            return None
        return read if len(self._field.path) == 1 else {*read, field}

    @override
    def change(self, record: Record) -> None:
        value = self._evaluated(record)
        as_it_is = type(value) is bytes and not self._field.path
        self._field.set(record, value if as_it_is else own(value))

    def _evaluated(self, record: Record) -> Any:
        try:
            return self._value(record)
        except Exception as error:  # an expression may raise any Python error
            raise ProcessError(failure(error), code="expression.failed") from error

    def _loop(self, value: Compiled) -> Loop | None:
        if len(self._field.path) != 1 or self._field.root not in ("after", "metadata"):
            return None
        name, is_expression = self._field.path[0], self.settings.expression is not None
        if self._field.root == "after":
            return _computed_loop(name, value, _CHECKED if is_expression else _PLAIN)
        return None if is_expression or value.literal is None else _metadata_loop(name, value.literal)

    def _code(self, value: Compiled) -> PayloadCode | None:
        if self._field.root != "after" or len(self._field.path) != 1:
            return None
        name = repr(self._field.path[0])
        if self.settings.expression is None and value.literal is not None:
            return PayloadCode(f"after[{name}] = {value.literal!r}", {})
        return _computed(name, value) if value.names <= {AFTER} else None


def _computed(name: str, value: Compiled) -> PayloadCode:
    if value.code is not None:
        made, names = f"made = {value.code.source}", value.code.names
    else:
        made, names = "record.after = after\nmade = value(record)", {"record": Record(0, {}), "value": value}
    finite, ascii_text = "kind is real and made * 0.0 == 0.0", "kind is text and made.isascii()"
    short = "kind is whole and least < made < huge"
    kept = f"made if ({short}) or ({finite}) or kind in plain or ({ascii_text}) else own(made)"
    source = f"{made}\nkind = made.__class__\nafter[{name}] = {kept}"
    kinds = {"plain": _PLAIN, "real": float, "text": str, "whole": int}
    return PayloadCode(source, {**names, **kinds, "least": LEAST, "huge": HUGE, "own": own})


def _computed_loop(name: str, value: Callable[[Record], Any], plain: frozenset[type]) -> Loop:
    def loop(rest: Iterator[Any]) -> None:
        for record in rest:
            made = value(record)
            kind = type(made)
            is_usual = LEAST < made < HUGE if kind is int else kind in plain or (kind is str and made.isascii())
            record.after[name] = made if is_usual else own(made)

    return loop


def _metadata_loop(name: str, literal: str) -> Loop:
    def loop(rest: Iterator[Any]) -> None:
        before: Any = None
        after: Any = None
        for record in rest:
            # records that shared one dict share the new one, which a destination then encodes once
            if record.metadata is not before:
                before = record.metadata
                after = {**before, name: literal}
            record.metadata = after

    return loop


def own(value: Any) -> Any:
    """Return a deep copy of an expression's value in a form that JSON can hold, sharing nothing with other fields.

    Raises ``ProcessError``. Raw data becomes text.
    """
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _well_formed(value)
    if kind is bytes:
        return _text(value)
    if kind is float:
        return value if math.isfinite(value) else _refuse(str(value))
    if kind is int:
        return value if LEAST < value < HUGE else _refuse("an integer of more than 4300 digits")
    return value if kind in _PLAIN else _container(value)


def _container(value: Any) -> Any:
    if isinstance(value, dict):
        return {_name(name): own(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [own(item) for item in value]
    return _refuse(kind_of(value))


def _name(name: Any) -> str:
    return _well_formed(name) if isinstance(name, str) else _refuse(f"the field name {name!r}")


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return _refuse("raw data that is not UTF-8")


def _well_formed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return _refuse("text with a lone surrogate")
    return text


def _refuse(what: str) -> Any:
    raise ProcessError(f"JSON cannot hold {what}", code="field.set.invalid")
