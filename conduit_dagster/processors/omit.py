"""``omit``: Transporter's function that removes fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field as Describe
from typing_extensions import override

from conduit_dagster.processors.base import Example, ProcessorContext, ProcessorSettings, Record
from conduit_dagster.processors.documents import FieldNames, document_of, names_in
from conduit_dagster.processors.in_place import InPlaceProcessor, Loop


class OmitSettings(ProcessorSettings):
    """Settings of ``omit``."""

    fields: FieldNames = Describe(description="The fields of the payload's document to remove: `type,count`.")


class Omit(InPlaceProcessor):
    """Remove fields of the document in ``.Payload.After``, as Transporter's ``omit``. A missing one is no error."""

    name: ClassVar[str] = "omit"
    Settings: ClassVar[type[ProcessorSettings]] = OmitSettings
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
        self._names = names_in(settings.fields)
        self.loop = _loop(self._names)

    @property
    @override
    def reads_key(self) -> bool:
        return False

    @override
    def change(self, record: Record) -> None:
        document = document_of(record) or {}
        for name in self._names:
            document.pop(name, None)


def _loop(names: list[str]) -> Loop:
    def loop(rest: Iterator[Any]) -> None:
        for record in rest:
            pop = record.after.pop
            for name in names:
                pop(name, None)

    return loop
