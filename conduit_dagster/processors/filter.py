"""``filter``: drop records."""

from __future__ import annotations

from typing_extensions import override

from conduit_dagster.payload_code import DROPPING
from conduit_dagster.sdk import DROP, Drop, Example, Processor, Record, Result


class Filter(Processor):
    """Drop every record that reaches it; dropped records count as acked.

    Without a ``condition`` on the processor, no record passes.
    """

    name = "filter"
    keeps_fields = True
    keyless = True
    shares_records = True
    payload_code = DROPPING
    examples = (Example("Every record", {}, Record("1", {}, {"id": 1}), DROP),)

    @override
    def process(self, record: Record) -> Drop:
        return DROP

    @override
    def process_block(self, records: list[Record]) -> list[Result]:
        return [DROP] * len(records)
