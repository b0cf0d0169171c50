"""Where a record comes from and when it was read: the connector that read it last says so, as in Conduit."""

from __future__ import annotations

from conduit_dagster.record import READ_AT, SOURCE_CONNECTOR_ID, Record
from conduit_dagster.sdk import ConnectorContext


class Labels:
    """The metadata that a chained source sets itself; the rest stays as the other pipeline has it."""

    def __init__(self, context: ConnectorContext) -> None:
        self._own = {SOURCE_CONNECTOR_ID: context.full_id, READ_AT: str(context.clock.now_ns)}

    @property
    def own(self) -> dict[str, str]:
        """Of a record that has none of its own."""
        return self._own

    def label(self, records: list[Record]) -> None:
        """Records that share their metadata go on sharing it."""
        last: dict[str, str] | None = None
        labelled = self._own
        for record in records:
            if record.metadata is not last:
                last = record.metadata
                labelled = {**last, **self._own}
            record.metadata = labelled
