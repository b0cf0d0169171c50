"""Destinations that take records, not bytes."""

from __future__ import annotations

from conduit_dagster.connectors.base.destination import Destination
from conduit_dagster.connectors.base.records import RecordWriter
from conduit_dagster.connectors.base.writer import Writer, WriterTask


class RecordStaging(Destination):
    """Its tasks stage whole records, each with its origin; so any range of them can be sent again."""

    divisible = True
    changes_records = False

    def writer(self, task: WriterTask) -> Writer:
        """Stages the records, each with its origin."""
        return RecordWriter(task)
