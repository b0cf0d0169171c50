"""``pick``: keep only some fields, as Transporter's function does."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from typing_extensions import override

from conduit_dagster.config.scalars import comma_separated
from conduit_dagster.payload_code import NoFitError, PayloadCode
from conduit_dagster.processors.common.in_place import DocumentProcessor, FieldNames, if_present
from conduit_dagster.record import Document
from conduit_dagster.sdk import Example, ProcessorContext, ProcessorSettings, Record


class PickSettings(ProcessorSettings):
    """Settings of ``pick``."""

    fields: FieldNames
    """The fields of the payload's document to keep: `_id,name`."""


class Pick(DocumentProcessor):
    """Keep only these fields of the document in ``.Payload.After``, in this order, as Transporter's ``pick``."""

    name = "pick"
    Settings = PickSettings
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
        self._names = comma_separated(settings.fields)
        self.payload_code = if_present(_code(self._names))

    @override
    def made_of(self, field: str) -> Collection[str]:
        return (field,) if field in self._names else ()

    @override
    def changed(self, document: Document) -> Document:
        return {name: document[name] for name in self._names if name in document}


def _code(names: Sequence[str]) -> PayloadCode:
    # most records have all the fields
    whole = f"after = {{{', '.join(f'{name!r}: after[{name!r}]' for name in names)}}}"
    some = "after = {name: after[name] for name in names if name in after}"
    check = "if after.__class__ is not document:\n    raise NoFitError"
    source = f"{check}\ntry:\n    {whole}\nexcept KeyError:\n    {some}"
    return PayloadCode(source, {"document": dict, "names": names, "NoFitError": NoFitError, "KeyError": KeyError})
