"""Types and defaults of settings in the words of a pipeline file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from conduit_dagster.processors import settings as processor_settings

_NAMES: Final[dict[Any, str]] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    dict: "mapping",
}
_FORMATS: Final = {"go-duration": "duration", "byte-size": "size", "regex": "regular expression"}
# an annotated text is known by what checks it
_CHECKED: Final[dict[Any, str]] = {
    get_args(processor_settings.Field)[1:]: "field reference",
    get_args(processor_settings.DataField)[1:]: "field reference",
    get_args(processor_settings.Template)[1:]: "literal or Go template",
    get_args(processor_settings.Expression)[1:]: "Python expression",
}
_BOUNDS: Final = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
_UNITS: Final = ((3600, "h"), (60, "m"), (1, "s"))
_SIZES: Final = ((10**9, "GB"), (10**6, "MB"), (10**3, "KB"))


def type_text(field: FieldInfo) -> str:
    """What kind of value the field takes, with its bounds."""
    name = _format(field) or _annotated(field.annotation, tuple(field.metadata))
    bounds = [
        f"{word} {getattr(rule, bound):g}"
        for rule in field.metadata
        for bound, word in _BOUNDS.items()
        if getattr(rule, bound, None) is not None
    ]
    return ", ".join([name, *bounds]) if name in ("integer", "number") else name


def _format(field: FieldInfo) -> str | None:
    extra = field.json_schema_extra
    named = extra.get("format") if isinstance(extra, dict) else None
    return _FORMATS.get(str(named)) or next(_formats_in(field.annotation), None)


def _formats_in(annotation: Any) -> Iterator[str]:
    """The format of an optional value is kept inside its union."""
    for argument in get_args(annotation):
        for rule in getattr(argument, "__metadata__", ()):
            if isinstance(rule, FieldInfo) and (name := _format(rule)) is not None:
                yield name


def _annotated(annotation: Any, metadata: tuple[Any, ...]) -> str:
    checked = _CHECKED.get(metadata) if _are_hashable(metadata) else None
    return checked or _name(annotation)


def _are_hashable(values: tuple[Any, ...]) -> bool:
    return all(type(value).__hash__ is not None for value in values)


def _name(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in get_args(annotation) if choice != "")
    if hasattr(annotation, "__metadata__"):
        return _annotated(annotation.__origin__, annotation.__metadata__)
    if get_origin(annotation) is list:
        return f"list of {_name(get_args(annotation)[0])}s"
    if get_origin(annotation) is dict:
        return _NAMES[dict]
    if inspect.isclass(annotation):
        name = annotation.__name__
        return _hyphened(name) if issubclass(annotation, BaseModel) else _NAMES.get(annotation, name)
    some = [argument for argument in get_args(annotation) if argument is not type(None)]
    return " or ".join(map(_name, some)) or "any value"


def _hyphened(name: str) -> str:
    """``dead-letter-queue`` for ``DeadLetterQueue``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def default_text(field: FieldInfo) -> str | None:
    """The default as a file would say it; None where there is none, or where it depends on other fields."""
    value = None if field.is_required() else field.default
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return _number(value, _format(field))
    return value or None if isinstance(value, str) else None


def _number(value: float, kind: str | None) -> str:
    if kind == "duration":
        return _in_units(value, _UNITS, "s")
    return _in_units(value, _SIZES, "") if kind == "size" else f"{value:g}" if value < 10**6 else str(value)


def _in_units(value: float, units: tuple[tuple[int, str], ...], smallest: str) -> str:
    for size, unit in units:
        if value >= size and value % size == 0:
            return f"{value / size:g}{unit}"
    return f"{value:g}{smallest}"
