"""``clone``: make several copies of each record."""

from __future__ import annotations

from pydantic import Field
from typing_extensions import override

from conduit_dagster.processors.common.setting_kinds import ConduitSettings
from conduit_dagster.record import copy
from conduit_dagster.sdk import Example, Processor, ProcessorContext, Record, Result

INDEX = "clone.index"


class CloneSettings(ConduitSettings):
    """Settings of ``clone``."""

    count: int = Field(ge=1, le=100_000)
    """How many clones of each record: with 2, three records come out for each one. A task holds those of a whole
    block."""


class Clone(Processor):
    """Emit each record, followed by clones of it. The metadata ``clone.index`` numbers them; the original is 0.

    The source record is acked only once the original and all clones are delivered.
    """

    name = "clone"
    keyless = True
    Settings = CloneSettings
    settings: CloneSettings
    shares_records = True
    examples = (
        Example(
            "One clone",
            {"count": "1"},
            Record("1", {"m": "x"}, {"id": 1}),
            [Record("1", {"m": "x", INDEX: "0"}, {"id": 1}), Record("1", {"m": "x", INDEX: "1"}, {"id": 1})],
        ),
    )

    def __init__(self, settings: CloneSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._numbers = [str(number) for number in range(settings.count + 1)]

    @override
    def process_block(self, records: list[Record]) -> list[Result]:
        results: list[Result] = []
        last: dict[str, str] | None = None
        counted: list[dict[str, str]] = []
        for record in records:  # cloning cannot fail
            if record.metadata is not last:
                last = record.metadata
                counted = self._counted(last)
            results.append(_cloned(record, counted))
        return results

    @override
    def process(self, record: Record) -> list[Record]:
        return _cloned(record, self._counted(record.metadata))

    def _counted(self, metadata: dict[str, str]) -> list[dict[str, str]]:
        """Return the metadata of the original and its clones.

        Records that shared their metadata also share these: metadata is replaced, never changed in place.
        """
        return [{**metadata, INDEX: number} for number in self._numbers]


def _cloned(record: Record, counted: list[dict[str, str]]) -> list[Record]:
    made = [record]
    for metadata in counted[1:]:
        one = copy(record)
        one.metadata = metadata
        made.append(one)
    record.metadata = counted[0]
    return made
