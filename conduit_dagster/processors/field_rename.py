"""``field.rename``: rename fields."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Annotated, NamedTuple

from pydantic import AfterValidator
from typing_extensions import override

from conduit_dagster.config.findings import refuse
from conduit_dagster.field_reference import Reference
from conduit_dagster.payload_code import NoFitError, PayloadCode
from conduit_dagster.processors.common.in_place import InPlaceProcessor
from conduit_dagster.processors.common.setting_kinds import ConduitSettings, list_items, reference
from conduit_dagster.reference_syntax import unquote
from conduit_dagster.sdk import Example, ProcessorContext, Record

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PAIR = re.compile(
    rf"""(?P<field>(?:\[{_QUOTED}\]|\['(?:[^'\\]|\\.)*'\]|[^:])*+):\s*(?P<name>{_QUOTED}|[^:"\s][^:]*)"""
)


class Renaming(NamedTuple):
    """A field and its new name."""

    field: Reference
    name: str


def _mapping(text: str) -> str:
    if not list(_renamings(text)):
        raise refuse("the mapping is empty", fix="write .Payload.After.old:new", column=0)
    return text


class FieldRenameSettings(ConduitSettings):
    """Settings of ``field.rename``."""

    mapping: Annotated[str, AfterValidator(_mapping)]
    """Fields and their new names, such as `.Payload.After.name:fullname,.Metadata.key:id`. A new name that holds a
    comma or a colon stands in double quotes. Whole parts of a record cannot be renamed.
    """


class FieldRename(InPlaceProcessor):
    """Rename fields within their documents, one after the other.

    As in Conduit, a missing field becomes null under the new name, and a record that already has a field with the new
    name, even null, is nacked.
    """

    name = "field.rename"
    Settings = FieldRenameSettings
    settings: FieldRenameSettings
    examples = (
        Example(
            "A field and a metadata entry",
            {"mapping": ".Payload.After.name:fullname,.Metadata.key:id"},
            Record("1", {"key": "7"}, {"name": "Ana"}),
            Record("1", {"id": "7"}, {"fullname": "Ana"}),
        ),
    )

    def __init__(self, settings: FieldRenameSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._renamings = list(_renamings(settings.mapping))
        self.payload_code = _code(self._renamings)

    @property
    @override
    def reads_key(self) -> bool:
        return any(renaming.field.root == "key" for renaming in self._renamings)

    @override
    def made_of(self, field: str) -> Collection[str]:
        before = {field}
        for renaming in reversed(self._renamings):
            if renaming.field.root == "after" and len(renaming.field.path) == 1:
                old = renaming.field.path[0]
                before = (before - {old, renaming.name}) | ({old} if renaming.name in before else set())
        return before

    @override
    def change(self, record: Record) -> None:
        for field, name in self._renamings:
            field.rename(record, name)


def _code(renamings: list[Renaming]) -> PayloadCode | None:
    if any(field.root != "after" or len(field.path) != 1 for field, _ in renamings):
        return None
    names = [(field.path[0], name) for field, name in renamings]
    new = frozenset(name for _, name in names)
    if len(new) < len(names) or any(old == name for old, name in names):
        return None  # one of them is nacked, and `change` renames those before it
    clash = f"{names[0][1]!r} in after" if len(names) == 1 else "not new.isdisjoint(after)"
    moves = [f"after[{name!r}] = after.pop({old!r}, None)" for old, name in names]
    source = "\n".join([f"if {clash}:\n    raise NoFitError", *moves])
    return PayloadCode(source, {"new": new, "NoFitError": NoFitError})


def _renamings(mapping: str) -> Iterator[Renaming]:
    for start, item in list_items(mapping):
        pair = _PAIR.fullmatch(item)
        if pair is None:
            raise refuse(f"{item!r} is not a FIELD:NAME pair", fix="write .Payload.After.old:new", column=start)
        field = reference(pair["field"].rstrip(), start)
        if field.root in ("operation", "position") or not field.path:
            raise refuse(
                f"{field.text} cannot be renamed", code="reference", fix="rename a field inside it", column=start
            )
        yield Renaming(field, unquote(pair["name"]) if pair["name"].startswith('"') else pair["name"])
