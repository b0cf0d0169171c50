"""``rename``: Transporter's function that renames fields."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import ConfigDict
from typing_extensions import override

from conduit_dagster.processors.base import Example, ProcessorContext, ProcessorSettings, Record
from conduit_dagster.processors.documents import document_of
from conduit_dagster.processors.in_place import InPlaceProcessor
from conduit_dagster.processors.settings import needs_some

_MAP = "field_map."


class RenameSettings(ProcessorSettings):
    """Settings of ``rename``: ``field_map.OLD: NEW`` for each field."""

    model_config = ConfigDict(extra="allow")
    open_keys: ClassVar[tuple[str, ...]] = (f"{_MAP}*",)

    @override
    def model_post_init(self, context: Any, /) -> None:
        needs_some(self, _MAP, "such as field_map.name: fullname")


class Rename(InPlaceProcessor):
    """Rename fields of the document in ``.Payload.After``, as Transporter's ``rename``, one after the other.

    A missing field is left out; a field that had the new name is lost.
    """

    name: ClassVar[str] = "rename"
    Settings: ClassVar[type[ProcessorSettings]] = RenameSettings
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
        self._names = list(settings.below(_MAP).items())

    @property
    @override
    def reads_key(self) -> bool:
        return False

    @override
    def change(self, record: Record) -> None:
        document = document_of(record) or {}
        for old, new in self._names:
            if old in document:
                document[new] = document.pop(old)
