"""``pick``: keep only some fields, as Transporter's function does."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import itemgetter
from typing import Any, ClassVar

from pydantic import Field as Describe
from typing_extensions import override

from conduit_dagster.processors.common.in_place import LookAgain
from conduit_dagster.processors.common.transporter_documents import DocumentProcessor, FieldNames, names_in
from conduit_dagster.record import Document
from conduit_dagster.sdk import Example, ProcessorContext, ProcessorSettings, Record


class PickSettings(ProcessorSettings):
    """Settings of ``pick``."""

    fields: FieldNames = Describe(description="The fields of the payload's document to keep: `_id,name`.")


class Pick(DocumentProcessor):
    """Keep only these fields of the document in ``.Payload.After``, in this order, as Transporter's ``pick``."""

    name: ClassVar[str] = "pick"
    Settings: ClassVar[type[ProcessorSettings]] = PickSettings
    settings: PickSettings
    examples = (
        Example(
            "Two fields",
            {"fields": "_id,name,other"},
            Record("1", {}, {"_id": 0, "name": "a", "type": "t", "count": 10}),
            Record("1", {}, {"_id": 0, "name": "a"}),
        ),
    )

    def __init__(self, settings: PickSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._names = names = names_in(settings.fields)

        chosen = itemgetter(*names) if len(names) > 1 else None

        def loop(rest: Iterator[Any]) -> None:
            for record in rest:
                document = record.after
                if type(document) is not dict:
                    raise LookAgain
                try:
                    # most records have all the fields
                    record.after = dict(zip(names, chosen(document), strict=True)) if chosen else picked(document)
                except KeyError:
                    record.after = picked(document)

        def picked(document: Document) -> Document:
            return {name: document[name] for name in names if name in document}

        self.loop = loop

    @override
    def made_of(self, field: str) -> Collection[str]:
        return (field,) if field in self._names else ()

    @override
    def changed(self, document: Document) -> Document:
        return {name: document[name] for name in self._names if name in document}
