"""``skip``: pass only matching records, as Transporter's function does."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

import msgspec
import re2
from pydantic import Field, ValidationInfo, field_validator
from typing_extensions import override

from conduit_dagster.config.findings import refuse
from conduit_dagster.config.scalars import compile_regex
from conduit_dagster.field_reference import kind_of
from conduit_dagster.processors.common.conversions import integer, to_float
from conduit_dagster.processors.common.in_place import document_of
from conduit_dagster.sdk import (
    DROP,
    Drop,
    Example,
    ProcessError,
    Processor,
    ProcessorContext,
    ProcessorSettings,
    Record,
    Result,
)

Compare = Callable[[Any, Any], bool]
_ORDERS: Final[dict[str, Compare]] = {
    word: compare
    for words, compare in (
        ((">", "gt", "$gt"), operator.gt),
        ((">=", "gte", "$gte"), operator.ge),
        (("<", "lt", "$lt"), operator.lt),
        (("<=", "lte", "$lte"), operator.le),
    )
    for word in words
}
_EQUAL: Final = ("==", "eq", "$eq")
_FITS: Final = "=~"
_WRONG: Final = "skip.wrong_type"


class SkipSettings(ProcessorSettings):
    """Settings of ``skip``."""

    field: str = Field(min_length=1)
    """The field of the payload's document to compare."""
    operator: str
    """`==` (`eq`, `$eq`), `=~` (a regular expression, unanchored), `>` (`gt`, `$gt`), `>=` (`gte`, `$gte`), `<` (`lt`,
    `$lt`), `<=` (`lte`, `$lte`).
    """
    match: str
    """What to compare it with: JSON where it is JSON (`10`, `true`, `"10"`), else text."""

    @field_validator("operator")
    @classmethod
    def _known(cls, text: str) -> str:
        known = (*_EQUAL, _FITS, *_ORDERS)
        if text not in known:
            raise refuse(f"there is no operator {text}", fix=f"one of {', '.join(known)}")
        return text

    @field_validator("match")
    @classmethod
    def _matchable(cls, text: str, info: ValidationInfo) -> str:
        operator = info.data.get("operator")
        if operator == _FITS:
            compile_regex(text)
        elif operator in _ORDERS and _number(_json(text)) is None:
            raise refuse(f"{text} is not a number", fix="an order compares numbers")
        return text


class Skip(Processor):
    """Pass the records whose field matches; the others are dropped and acked, as in Transporter's ``skip``.

    ``==`` compares value and type (1 and 1.0 are equal, 10 and "10" are not). ``>``, ``>=``, ``<`` and ``<=`` compare
    numbers, and text that ``field.convert`` makes an integer or a finite float. Any other value is nacked, and so is a
    value that is not text for ``=~``.
    """

    name = "skip"
    keeps_fields = True
    keyless = True
    Settings = SkipSettings
    settings: SkipSettings
    shares_records = True
    examples = (
        Example(
            "It goes on",
            {"field": "count", "operator": ">", "match": "9"},
            Record("1", {}, {"count": 10}),
            Record("1", {}, {"count": 10}),
        ),
        Example(
            "It is dropped", {"field": "count", "operator": ">", "match": "10"}, Record("1", {}, {"count": 10}), DROP
        ),
        Example(
            "It can't be compared",
            {"field": "count", "operator": ">", "match": "10"},
            Record("1", {}, {"count": False}),
            "skip.wrong_type",
        ),
    )

    def __init__(self, settings: SkipSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._matches = _matcher(settings)

    @override
    def process_block(self, records: list[Record]) -> list[Result]:
        matches, field = self._matches, self.settings.field
        try:
            return [record if matches(record.after.get(field)) else DROP for record in cast("list[Any]", records)]
        except Exception:  # noqa: BLE001  # a record has no document or can't be compared: try each alone
            return super().process_block(records)

    @override
    def process(self, record: Record) -> Record | Drop:
        document = document_of(record) or {}
        return record if self._matches(document.get(self.settings.field)) else DROP


def _matcher(settings: SkipSettings) -> Callable[[Any], bool]:
    field, match = settings.field, _json(settings.match)
    if settings.operator in _EQUAL:
        return lambda value: _same(value, match)
    if settings.operator == _FITS:
        search = re2.compile(settings.match).search
        return lambda value: search(_text(value, field)) is not None
    compare, limit = _ORDERS[settings.operator], _number(match)
    return lambda value: compare(_comparable(value, field), limit)


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _same(value: Any, match: Any) -> bool:
    if isinstance(match, list):
        return isinstance(value, list) and len(value) == len(match) and all(map(_same, value, match))
    if isinstance(match, dict):
        is_alike = isinstance(value, dict) and value.keys() == match.keys()
        return is_alike and all(_same(value[name], inner) for name, inner in match.items())
    # True == 1 in Python, but not in JSON
    return value == match and isinstance(value, bool) == isinstance(match, bool)


def _text(value: Any, field: str) -> str:
    if isinstance(value, str):
        return value
    raise ProcessError(f"the field {field} is {kind_of(value)}, not text", code=_WRONG)


def _comparable(value: Any, field: str) -> float | int:
    number = _number(value)
    if number is None:
        raise ProcessError(f"the field {field} is {kind_of(value)}, not a number: {value!r}", code=_WRONG)
    return number


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if isinstance(value, str):
        # whole numbers first: a float has 53 bits
        for convert in (integer, to_float):
            with suppress(ValueError, OverflowError):
                return convert(value)
    return None
