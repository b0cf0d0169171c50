"""``field.exclude``: remove fields."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated

from pydantic import AfterValidator
from typing_extensions import override

from conduit_dagster.config.findings import refuse
from conduit_dagster.field_reference import Reference
from conduit_dagster.payload_code import PayloadCode
from conduit_dagster.processors.common.in_place import InPlaceProcessor, removing
from conduit_dagster.processors.common.setting_kinds import ConduitSettings, list_items, reference
from conduit_dagster.sdk import Example, ProcessorContext, Record

_BOTH_PAYLOADS = (".Payload.Before", ".Payload.After")


def _fields(text: str) -> str:
    if not list(_references(text)):
        raise refuse("the list of fields is empty", fix="write .Payload.After.name", column=0)
    return text


class FieldExcludeSettings(ConduitSettings):
    """Settings of ``field.exclude``."""

    fields: Annotated[str, AfterValidator(_fields)]
    """The fields to remove, separated by commas: `.Payload.After.tags,.Metadata.team`. `.Payload.After` empties the
    payload. `.Operation` and `.Position` cannot be removed.
    """


class FieldExclude(InPlaceProcessor):
    """Remove fields with all their content.

    A missing field is not an error, but missing documents on the path to it are created, as in Conduit.
    """

    name = "field.exclude"
    Settings = FieldExcludeSettings
    settings: FieldExcludeSettings
    examples = (
        Example(
            "Two fields",
            {"fields": ".Payload.After.tags,.Metadata.team"},
            Record("1", {"team": "a"}, {"id": 1, "tags": []}),
            Record("1", {}, {"id": 1}),
        ),
    )

    def __init__(self, settings: FieldExcludeSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._fields = list(_references(settings.fields))
        self.payload_code = _code(self._fields)

    @property
    @override
    def reads_key(self) -> bool:
        return any(field.root == "key" for field in self._fields)

    @override
    def made_of(self, field: str) -> Collection[str]:
        gone = any(one.root == "after" and one.path in ((), (field,)) for one in self._fields)
        return () if gone else (field,)

    @override
    def change(self, record: Record) -> None:
        for field in self._fields:
            field.delete(record)


def _code(fields: list[Reference]) -> PayloadCode | None:
    if any(field.root != "after" or len(field.path) != 1 for field in fields):
        return None
    return removing([field.path[0] for field in fields])


def _references(fields: str) -> Iterator[Reference]:
    for start, item in list_items(fields):
        if item in (".Payload", ".payload"):
            yield from (Reference.parse(payload) for payload in _BOTH_PAYLOADS)
            continue
        field = reference(item, start)
        if field.root in ("operation", "position"):
            raise refuse(
                f"{field.text} cannot be removed", code="reference", fix="leave it out of the list", column=start
            )
        yield field
