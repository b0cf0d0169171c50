"""``omit``: remove fields, as Transporter's function does."""

from __future__ import annotations

from collections.abc import Collection

from typing_extensions import override

from conduit_dagster.config.scalars import comma_separated
from conduit_dagster.processors.common.in_place import DocumentProcessor, FieldNames, if_present, removing
from conduit_dagster.record import Document
from conduit_dagster.sdk import Example, ProcessorContext, ProcessorSettings, Record


class OmitSettings(ProcessorSettings):
    """Settings of ``omit``."""

    fields: FieldNames
    """The fields of the payload's document to remove: `type,count`."""


class Omit(DocumentProcessor):
    """Remove fields of the document in ``.Payload.After``, as Transporter's ``omit``. Missing fields are ignored."""

    name = "omit"
    Settings = OmitSettings
    settings: OmitSettings
    examples = (
        Example(
            "Two fields",
            {"fields": "type,count"},
            Record("1", {}, {"_id": 0, "name": "a", "type": "t", "count": 10}),
            Record("1", {}, {"_id": 0, "name": "a"}),
        ),
    )

    def __init__(self, settings: OmitSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._names = comma_separated(settings.fields)
        self.payload_code = if_present(removing(self._names))

    @override
    def made_of(self, field: str) -> Collection[str]:
        return () if field in self._names else (field,)

    @override
    def changed(self, document: Document) -> Document:
        for name in self._names:
            document.pop(name, None)
        return document
