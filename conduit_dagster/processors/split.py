"""``split``: make one record for each element of a list."""

from __future__ import annotations

from typing_extensions import override

from conduit_dagster.field_reference import Reference, kind_of
from conduit_dagster.processors.common.setting_kinds import DataField
from conduit_dagster.record import copy
from conduit_dagster.sdk import Example, ProcessError, Processor, ProcessorContext, ProcessorSettings, Record

INDEX = "split.index"


class SplitSettings(ProcessorSettings):
    """Settings of ``split``."""

    field: DataField
    """The field that holds the list, such as `.Payload.After.tags`: within a document of the key or of a payload. Put
    json.decode before it if these are raw.
    """


class SplitProcessor(Processor):
    """Emit one record for each element of a list, with the element in place of the list.

    The metadata ``split.index`` is the element's index, from 0. A record with an empty list is dropped and acked. A
    missing field, or one that is not a list, is nacked.
    """

    name = "split"
    Settings = SplitSettings
    settings: SplitSettings
    shares_records = True
    examples = (
        Example(
            "A record for each tag",
            {"field": ".Payload.After.tags"},
            Record("1", {}, {"id": 1, "tags": ["a", "b"]}),
            [Record("1", {INDEX: "0"}, {"id": 1, "tags": "a"}), Record("1", {INDEX: "1"}, {"id": 1, "tags": "b"})],
        ),
        Example("No list", {"field": ".Payload.After.tags"}, Record("1", {}, {"id": 1}), "split.no_list"),
    )

    def __init__(self, settings: SplitSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._field = Reference.parse(settings.field)

    @property
    @override
    def reads_key(self) -> bool:
        return self._field.root == "key"

    @override
    def process(self, record: Record) -> list[Record]:
        elements = self._field.get(record)
        if not isinstance(elements, list):
            raise ProcessError(f"{self.settings.field} is {kind_of(elements)}, not a list", code="split.no_list")
        # remove the list first, so that it is not copied for each element
        self._field.set(record, None)
        metadata = record.metadata
        found = [record if number == 0 else copy(record) for number in range(len(elements))]
        for number, (one, element) in enumerate(zip(found, elements, strict=True)):
            self._field.set(one, element)
            one.metadata = {**metadata, INDEX: str(number)}
        return found
