"""The ``s3`` destination: an object for each delivery."""

from __future__ import annotations

import time
from typing import Any, Final

from conduit_dagster.connectors.s3.bucket import Bucket
from conduit_dagster.connectors.s3.object_formats import JsonLines, RowsWriter, joined_lines, joined_rows
from conduit_dagster.connectors.s3.settings import S3DestinationSettings
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import ConnectorContext, Delivery, StagedDestination, StagedWriter, Target, Writer, WriterTask

_MARK: Final = "conduit-delivery"
"""Metadata of an object: the hash of its delivery."""
_SHOWN: Final = 12
_TYPES: Final = {"json": "application/json", "parquet": "application/octet-stream"}


class S3Destination(StagedDestination):
    """Objects of a bucket, each with the records of one step in their order, and each record once after any crash.

    An object is named by the time of its step in nanoseconds, as Conduit's are, and by its delivery,
    ``1764579600000000000-3f2a9c01b7de.json``: sorted by name, objects are in the order of their steps. It becomes
    visible at once, and a repeat writes the same one.
    """

    name = "s3"
    Settings = S3DestinationSettings
    settings: S3DestinationSettings
    strategies = frozenset({"exactly-once", "at-least-once", "at-most-once"})
    changes_records = False

    def __init__(self, settings: S3DestinationSettings, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._bucket = Bucket(settings)

    @property
    def address(self) -> str:
        """URL of the folder, whose objects may have other writers too. ``/a`` is another folder than ``a`` in S3."""
        return f"{self._bucket.url}/{self.settings.folder}".removesuffix("/")

    @property
    def hashes_at(self) -> str | None:
        """The store, if it is set: a bucket of one name in another store has none of the objects."""
        return f"aws.endpoint {self.settings.endpoint}" if self.settings.endpoint else None

    @property
    def objects_written(self) -> tuple[str, str]:
        """The store with the bucket, and how the keys begin, for the check of a pipeline that reads what it writes."""
        return self.settings.place, self.settings.folder

    def check(self) -> None:
        """Raise if the bucket can't be listed."""
        self._bucket.check()

    def target(self, previous: Target | None) -> Target:
        """Return the time in the object's name: later than that of the object before, whatever the clock says."""
        before = (previous or {}).get("time", 0)
        return {"time": max(time.time_ns(), before + 1), "format": self.settings.format}

    def writer(self, task: WriterTask) -> Writer:
        """Return a writer of lines, or of rows."""
        return StagedWriter(task, JsonLines()) if self.settings.format == "json" else RowsWriter(task)

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the delivery's object is there. S3 shows no part of an object."""
        if not delivery.parts:
            return True
        marks = self._bucket.marks(self._key(delivery))
        return marks is not None and marks.get(_MARK) == delivery.hash

    def publish(self, delivery: Delivery) -> Target:
        """Write the object, unless it is there: who reads the bucket would take a repeat for a change."""
        if delivery.parts:
            if not self._put(delivery, is_new=True) and not self.holds(delivery):
                self._put(delivery)
            reached("mid-publish", self.context.pipeline)
        return delivery.target

    def _put(self, delivery: Delivery, is_new: bool = False) -> bool:
        kind = delivery.target["format"]
        data = joined_lines(delivery) if kind == "json" else joined_rows(delivery)
        options: dict[str, Any] = {
            "ContentType": _TYPES[kind],
            "ContentDisposition": "attachment",
            "Metadata": {_MARK: delivery.hash},
        }
        return self._bucket.put(self._key(delivery), data, options, is_new)

    def _key(self, delivery: Delivery) -> str:
        name = f"{delivery.target['time']}-{delivery.hash[:_SHOWN]}.{delivery.target['format']}"
        return f"{self.settings.folder}{name}"
