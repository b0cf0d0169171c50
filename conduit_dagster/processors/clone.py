"""``clone``: several copies of each record."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field as Describe
from typing_extensions import override

from conduit_dagster.processors.base import Example, Processor, ProcessorSettings, Record
from conduit_dagster.record import copy

INDEX = "clone.index"


class CloneSettings(ProcessorSettings):
    """Settings of ``clone``."""

    count: int = Describe(
        ge=1, description="How many clones of each record: with 2, three records come out for each one."
    )


class Clone(Processor):
    """Each record, and clones of it behind it. The metadata ``clone.index`` counts them from 0, the original.

    All of them share their source record's fate: it is acked once every one is delivered.
    """

    name: ClassVar[str] = "clone"
    keyless: ClassVar[bool] = True
    Settings: ClassVar[type[ProcessorSettings]] = CloneSettings
    settings: CloneSettings
    shares_records: ClassVar[bool] = True
    examples = (
        Example(
            "One clone",
            {"count": "1"},
            Record("1", {"m": "x"}, {"id": 1}),
            [Record("1", {"m": "x", INDEX: "0"}, {"id": 1}), Record("1", {"m": "x", INDEX: "1"}, {"id": 1})],
        ),
    )

    @override
    def process(self, record: Record) -> list[Record]:
        metadata = record.metadata
        clones = [copy(record) for _ in range(self.settings.count)]
        for number, one in enumerate((record, *clones)):
            one.metadata = {**metadata, INDEX: str(number)}
        return [record, *clones]
