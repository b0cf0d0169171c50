"""``rename``: rename fields, as Transporter's function does."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from typing_extensions import override

from conduit_dagster.processors.common.in_place import DocumentProcessor, MapSettings
from conduit_dagster.record import Document
from conduit_dagster.sdk import Example, ProcessorContext, Record


class RenameSettings(MapSettings):
    """Settings of ``rename``: ``field_map.OLD: NEW`` for each field."""

    prefix: ClassVar[str] = "field_map."
    open_keys: ClassVar[tuple[str, ...]] = ("field_map.*",)


class Rename(DocumentProcessor):
    """Rename fields of the document in ``.Payload.After``, as Transporter's ``rename``, one after the other.

    A missing field is skipped; an existing field with the new name is lost.
    """

    name = "rename"
    Settings = RenameSettings
    settings: RenameSettings
    examples = (
        Example(
            "One field",
            {"field_map.name": "fullname", "field_map.missing": "other"},
            Record("1", {}, {"_id": 0, "name": "a"}),
            Record("1", {}, {"_id": 0, "fullname": "a"}),
        ),
    )

    def __init__(self, settings: RenameSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._names = list(settings.names.items())

    @override
    def made_of(self, field: str) -> Collection[str]:
        before = {field}
        for old, new in reversed(self._names):
            # if the old name is missing, a field that already has the new one keeps it
            before = (before - {old}) | ({old} if new in before else set())
        return before

    @override
    def changed(self, document: Document) -> Document:
        for old, new in self._names:
            if old in document:
                document[new] = document.pop(old)
        return document
