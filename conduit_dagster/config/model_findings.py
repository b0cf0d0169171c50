"""Validation of sections: every error of the models becomes a finding, and the valid parts are kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, PrivateAttr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from conduit_dagster.config import pointer as pointers
from conduit_dagster.config.document import Document
from conduit_dagster.config.findings import Finding, did_you_mean, nearest, shown
from conduit_dagster.config.tree import Mapped


def kebab(name: str) -> str:
    """Return the name in the file for an attribute in Python."""
    return name.replace("_", "-")


class Section(BaseModel):
    """Mapping in a file. An empty value counts as not given, as in Conduit.

    In Python a section can be created by attribute names; in a file only the hyphenated names count.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=kebab,
        validate_by_name=True,
        validate_by_alias=True,
    )

    empty: ClassVar[frozenset[str]] = frozenset()
    """Keys whose empty value counts as given."""

    _where: str = PrivateAttr(default="")

    @model_validator(mode="wrap")
    @classmethod
    def _remember_place(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        section = handler(_given(cls, data))
        if isinstance(data, Mapped):
            section._where = data.where
        return section

    @property
    def where(self) -> str:
        """JSON pointer of the mapping in its document; empty for a section created in Python."""
        return self._where


@cache
def _names(section: type[BaseModel]) -> frozenset[str]:
    return frozenset(kebab(name) for name in section.model_fields)


def _given(section: type[Section], data: Any) -> Any:
    if not isinstance(data, Mapping):
        return data
    known = _names(section) - section.empty
    items = cast(Mapping[str, Any], data).items()
    given = {key: value for key, value in items if key not in known or (value is not None and value != "")}
    return Mapped.at(data.where, given) if isinstance(data, Mapped) else given


S = TypeVar("S", bound=Section)
Location = tuple[int | str, ...]

_ROUNDS = 10
_EXPECTED = {
    "string_type": "a text",
    "finite_number": "a number",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


@dataclass(frozen=True)
class Checker:
    """Checker of the sections of one document."""

    document: Document
    strict: bool = False

    def check(self, model: type[S], tree: Mapped) -> tuple[S, list[Finding]]:
        """Return the section and all its findings.

        If there are findings, the section holds only the valid parts: an invalid value is replaced by its default, and
        a connector or processor without a required field is left out. Use such a section for further checks, never for
        running.
        """
        section, errors = _validated(model, tree)
        if section is not None:
            return section, []
        data = _copy(tree)
        unknown = [error for error in errors if error["type"] == "extra_forbidden"]
        for error in unknown:
            _remove(data, error["loc"])
        section, errors = _validated(model, data)
        findings = [self._finding(model, tree, error) for error in (*unknown, *errors)]
        return section or _saved(model, data), findings

    def unknown_key(self, pointer: str, key: str, candidates: list[str]) -> Finding:
        """Return the finding for an unknown key: a warning as in Conduit, an error in strict mode."""
        message = f"the field {key} is not known" + ("" if self.strict else " and was ignored")
        known = None if nearest(key, candidates) else ", ".join(candidates)
        return self.document.finding(
            pointers.child(pointer, key),
            "config.field_unknown",
            message,
            severity="error" if self.strict else "warning",
            got=key,
            expected=known,
            fix=did_you_mean(key, candidates),
            on_key=True,
        )

    def _finding(self, model: type[Section], tree: Mapped, error: ErrorDetails) -> Finding:
        location = _location(error)
        pointer = pointers.join(tree.where, location)
        if error["type"] == "extra_forbidden":
            candidates = list(_fields(section_at(model, location[:-1]) or model))
            return self.unknown_key(pointers.parent(pointer), str(location[-1]), candidates)
        if error["type"] == "missing":
            return self._missing(pointer, str(location[-1]))
        context: dict[str, Any] = error.get("ctx", {})
        code = error["type"] if error["type"].startswith("config.") else "config.field_invalid"
        expected, got = _expected(error), self._got(pointer, error)
        message = str(context.get("message") or _message(_name(pointer, location), expected))
        # a fix may be made of the value, which may be a secret where the file has a reference
        fix = (None if _has_reference(got) else context.get("fix")) or _spelling(error, got)
        return self.document.finding(pointer, code, message, got=got, expected=expected, fix=fix)

    def _missing(self, pointer: str, name: str) -> Finding:
        got = '""' if self.document.has(pointer) else None
        return self.document.finding(
            pointer, "config.field_required", f"{name} is required", got=got, fix=f"add {name}:"
        )

    def _got(self, pointer: str, error: ErrorDetails) -> str | None:
        """Return the value as written, so that an expanded variable is not shown."""
        if not self.document.has(pointer):
            return None
        written = self.document.text(pointer)
        if written is not None:
            return shown(written)
        return {list: "a list", Mapped: "a mapping"}.get(type(error["input"]))


def _has_reference(written: str | None) -> bool:
    return written is not None and "$" in written


def section_at(model: type[BaseModel], location: Location) -> type[BaseModel] | None:
    """Return the section at a location of the data; None below a free-form mapping."""
    for part in location:
        if isinstance(part, str):
            field = _fields(model).get(part)
            inner = _section_in(field.annotation) if field is not None else None
            if inner is None:
                return None
            model = inner
    return model


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_section_in(argument) for argument in get_args(annotation))
    return next((section for section in found if section is not None), None)


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {kebab(name): field for name, field in model.model_fields.items()}


def _validated(model: type[S], data: Mapped) -> tuple[S | None, list[ErrorDetails]]:
    """Return the section, or None and all errors."""
    try:
        return model.model_validate(data, by_alias=True, by_name=False), []
    except ValidationError as error:
        # a default derived from an invalid field is not a separate mistake
        errors = error.errors(include_url=False)
        return None, [error for error in errors if error["type"] != "default_factory_not_called"]


def _location(error: ErrorDetails) -> Location:
    field = error.get("ctx", {}).get("at")
    return error["loc"] if field is None else (*error["loc"], field)


def _expected(error: ErrorDetails) -> str | None:
    context: dict[str, Any] = error.get("ctx", {})
    if "expected" in context:
        text = context["expected"]
        return None if text is None else re.sub(r"'([^']*)'", r"\1", str(text))
    bound = next((f"{word} {context[name]}" for name, word in _BOUNDS.items() if name in context), None)
    kind = error["type"]
    return bound or _EXPECTED.get(kind) or _EXPECTED.get(kind.partition("_")[0])


def _name(pointer: str, location: Location) -> str:
    """Return what a location is called: a field by its name, an item by that of its list."""
    if location and isinstance(location[-1], int):
        return f"an item of {pointers.parent(pointer).rpartition('/')[2]}"
    return str(location[-1]) if location else "value"


def _message(name: str, expected: str | None) -> str:
    return f"{name} is invalid" if expected is None else f"{name} must be {expected}"


def _spelling(error: ErrorDetails, got: str | None) -> str | None:
    if error["type"] != "literal_error" or got is None:
        return None
    return did_you_mean(got, re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", ""))))


def _copy(data: Any) -> Any:
    if isinstance(data, Mapped):
        return Mapped.at(data.where, {key: _copy(value) for key, value in data.items()})
    return [_copy(item) for item in cast(list[Any], data)] if isinstance(data, list) else data


def _saved(model: type[S], data: Mapped) -> S:
    """Return the section that remains after all invalid parts are removed, round by round."""
    for _ in range(_ROUNDS):
        section, errors = _validated(model, data)
        if section is not None:
            return section
        # from the end, so that earlier list indexes stay valid
        for error in sorted(errors, key=_position, reverse=True):
            _take_out(model, data, error)
    return model.model_validate(_with_id({}, data) if "id" in _fields(model) else {})


def _position(error: ErrorDetails) -> list[tuple[int, str]]:
    return [(part, "") if isinstance(part, int) else (-1, part) for part in error["loc"]]


def _take_out(model: type[Section], data: Mapped, error: ErrorDetails) -> None:
    *above, name = error["loc"] or ("",)
    section = section_at(model, tuple(above)) if isinstance(name, str) else None
    field = _fields(section).get(str(name)) if section is not None else None
    if field is None or not field.is_required():
        _remove(data, error["loc"])
    elif name == "id":
        holder = _at(data, tuple(above))
        if isinstance(holder, dict):
            _with_id(cast(dict[str, Any], holder), cast(dict[str, Any], holder))
    else:
        _remove(data, tuple(above))


def _with_id(target: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """Set a placeholder for a missing or invalid id, and return ``target``."""
    target["id"] = "invalid-" + re.sub(r"[^A-Za-z0-9]", "-", str(data.get("id") or ""))[:64]
    return target


def _at(data: Any, location: Location) -> Any:
    for part in location:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _remove(data: Mapped, location: Location) -> None:
    """Remove one value; do nothing if it is already gone, or for the root."""
    if not location:
        return
    holder, last = _at(data, location[:-1]), location[-1]
    if isinstance(holder, dict):
        cast(dict[int | str, Any], holder).pop(last, None)
    elif isinstance(holder, list) and isinstance(last, int) and last < len(cast(list[Any], holder)):
        del holder[last]
