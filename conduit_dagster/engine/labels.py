"""What the engine writes into every record's metadata, as Conduit does."""

from __future__ import annotations

from conduit_dagster.record import READ_AT, SOURCE_CONNECTOR_ID, Record


def label(pipeline: str, source: str, now_ns: int, records: list[Record]) -> None:
    """Where a record comes from and when it was read; a source's own values win.

    Records that share their metadata go on sharing it.
    """
    own = {SOURCE_CONNECTOR_ID: f"{pipeline}:{source}", READ_AT: str(now_ns)}
    last: dict[str, str] | None = None
    labelled = own
    for record in records:
        if record.metadata is not last:
            last = record.metadata
            labelled = {**own, **last}
        record.metadata = labelled
