"""Landing of rows from Spark: a snapshot, or the batches of a stream."""

from __future__ import annotations

import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from conduit_dagster import storage
from conduit_dagster.connectors.spark.driver_session import asked, literal
from conduit_dagster.connectors.spark.landing import Landing
from conduit_dagster.connectors.spark.settings import SparkSourceSettings
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import ConnectorContext
from conduit_dagster.sdk.context import resolved
from conduit_dagster.spark.jobs import JobCancelled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARQUET: Final = ".parquet"
_STREAM: Final = "stream"
_SNAPSHOT: Final = "snapshot-"
_CHECKPOINT: Final = "checkpoint"
_LOG: Final = "_spark_metadata"
_COMPACT: Final = ".compact"
_OF_FILES: Final = frozenset({"avro", "binaryFile", "csv", "json", "orc", "parquet", "text", "xml"})
_REBASE: Final = ("spark.sql.parquet.datetimeRebaseModeInWrite", "spark.sql.parquet.int96RebaseModeInWrite")
_TIMES: Final = "spark.sql.parquet.outputTimestampType"
_LOOK: Final = 1
"""Seconds between checks for a forced stop of the pipeline."""


class Lander(ABC):
    """Writer of one source's rows to its landing. Runs on the driver."""

    def __init__(
        self, format_: str, settings: SparkSourceSettings, context: ConnectorContext, landing: Landing
    ) -> None:
        self._format, self._settings, self._context, self._landing = format_, settings, context, landing

    @abstractmethod
    def is_due(self) -> bool:
        """Return whether Spark is to be queried now."""

    @abstractmethod
    def land(self) -> bool:
        """Land available rows; return False if nothing was new. Raises ``TransientError`` with Spark's message."""

    def _loaded(self, reader: Any) -> Any:
        """Return the frame loaded by ``spark.read`` or ``spark.readStream``."""
        reader = reader.format(self._format).options(**self._settings.options)
        if self._settings.ddl:
            reader = reader.schema(self._settings.ddl)
        path = self._settings.path
        return reader.load(self._pattern(path)) if path else reader.load()

    def _pattern(self, path: str) -> str:
        """Return the path below the project root. Formats of files take it as a pattern, which the root is none of."""
        root = self._context.root
        return resolved(path, literal(root) if self._format in _OF_FILES else root)

    @contextmanager
    def _asked(self, doing: str) -> Generator[tuple[SparkSession, threading.Event]]:
        with asked(self._context, self._format, doing, self._settings.register_) as (spark, cancelled):
            _require_calendar(spark)
            _require_microseconds(spark)
            yield spark, cancelled


def _require_calendar(spark: SparkSession) -> None:
    """Raise ``FatalError`` if Spark would land days of the Julian calendar, which are other days when they are read."""
    legacy = [key for key in _REBASE if (spark.conf.get(key) or "").upper() == "LEGACY"]
    if legacy:
        raise FatalError(
            f"with {' and '.join(legacy)}=LEGACY, days before 1582-10-15 would land as other days",
            code="spark.legacy_calendar",
            place="spark.conf",
            fix=f"set in conduit.yaml: spark: {{conf: {{{', '.join(f'{key}: CORRECTED' for key in legacy)}}}}}",
        )


def _require_microseconds(spark: SparkSession) -> None:
    """Raise ``FatalError`` if Spark would land times without their microseconds."""
    if (spark.conf.get(_TIMES) or "").upper() == "TIMESTAMP_MILLIS":
        raise FatalError(
            f"with {_TIMES}=TIMESTAMP_MILLIS, times would land without their microseconds",
            code="spark.times_cut",
            place="spark.conf",
            fix=f"set in conduit.yaml: spark: {{conf: {{{_TIMES}: TIMESTAMP_MICROS}}}}",
        )


class SnapshotLander(Lander):
    """Lander of one snapshot; with ``refresh``, of a new one whenever it is too old."""

    def is_due(self) -> bool:
        """Return whether there is no snapshot, or the newest one is older than ``refresh`` or of the future."""
        batches = self._landing.batches()
        if not batches:
            return True
        refresh, age = self._settings.refresh, time.time() - batches[-1].at
        # a snapshot of the future landed while the clock was ahead
        return refresh is not None and not 0 <= age < refresh

    def land(self) -> bool:
        """Take a snapshot if one is due."""
        if not self.is_due():
            return False
        number, folder = self._landing.next_number(), f"{_SNAPSHOT}{secrets.token_hex(8)}"
        url = storage.join(self._landing.url, folder)
        storage.make_folder(self._landing.url)
        with self._asked("be read") as (spark, _):
            self._loaded(spark.read).write.parquet(url)
        names = [f"{folder}/{name}" for name in storage.files(url) if name.endswith(_PARQUET) and name[0] not in "._"]
        self._landing.land(number, names, folder)
        self._landing.clean(_SNAPSHOT)
        return True


class StreamLander(Lander):
    """Lander of new rows, by a query that ends when it has caught up; its checkpoint holds its progress."""

    _asked_at = 0.0

    def is_due(self) -> bool:
        """Return whether ``poll`` has passed since the last query."""
        return time.monotonic() - self._asked_at >= self._settings.poll

    def land(self) -> bool:
        """Run the query, and land the files that its file sink has committed and no batch names yet.

        If the query fails, the batches that it committed before land all the same.
        """
        number, url = self._landing.next_number(), storage.join(self._landing.url, _STREAM)
        storage.make_folder(self._landing.url)
        try:
            self._catch_up(url)
        except JobCancelled:
            raise
        except TransientError:
            self._land_committed(number, url)
            raise
        self._asked_at = time.monotonic()
        return self._land_committed(number, url)

    def _catch_up(self, url: str) -> None:
        with self._asked("be streamed") as (spark, cancelled):
            frame = self._loaded(spark.readStream)
            checkpoint = storage.join(self._landing.url, _CHECKPOINT)
            writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
            query = writer.option("path", url).trigger(availableNow=True).start()
            try:
                while not query.awaitTermination(_LOOK):
                    if cancelled.is_set():
                        raise JobCancelled("the stream was cancelled", code="spark.job_cancelled")
            finally:
                query.stop()

    def _land_committed(self, number: int, url: str) -> bool:
        newest = next(iter(self._landing.batches()[-1:]), None)
        seen, last = (newest.sink, newest.files[-1].name) if newest else (-1, "")
        sink, found = _committed(url, seen)
        # Spark's sink lists files forever: those up to the newest landed one are not new, in whichever log they are now
        fresh = found[found.index(last) + 1 :] if last in found else found
        if fresh:
            self._sync(sink)
            self._landing.land(number, fresh, sink=sink)
        return bool(fresh)

    def _sync(self, sink: int) -> None:
        """Sync Spark's own records of the batches: if a power failure lost them, the batches would land again."""
        base = self._landing.url
        for folder in (f"{_STREAM}/{_LOG}", f"{_CHECKPOINT}/offsets", f"{_CHECKPOINT}/commits"):
            url = storage.join(base, folder)
            for name in storage.files(url):
                if name[0].isdigit() and _batch(name) >= sink - 1:
                    storage.sync(storage.join(url, name))
            storage.sync(url)
        storage.sync(storage.join(base, _CHECKPOINT))
        storage.sync(storage.join(base, _STREAM))


class _Entry(msgspec.Struct):
    path: str
    action: str = "add"


def _committed(url: str, seen: int) -> tuple[int, list[str]]:
    """Return the sink's newest batch, and the files of batches after ``seen`` in order, relative to the landing.

    Every tenth batch, Spark compacts all entries so far into one file; it then contains older files.
    """
    log = storage.join(url, _LOG)
    names = {name for name in storage.files(log) if name[0].isdigit()}
    compact = max((name for name in names if name.endswith(_COMPACT)), key=_batch, default=None)
    after = seen if compact is None else max(seen, _batch(compact))
    logs = [name for name in sorted(names, key=_batch) if not name.endswith(_COMPACT) and _batch(name) > after]
    if compact is not None and _batch(compact) > seen:
        logs = [compact, *logs]
    found = [entry for name in logs for entry in _entries(storage.join(log, name))]
    paths = [f"{_STREAM}/{entry.path.rsplit('/', 1)[-1]}" for entry in found if entry.action == "add"]
    return max(map(_batch, names), default=-1), paths


def _batch(name: str) -> int:
    return int(name.removesuffix(_COMPACT))


def _entries(url: str) -> Iterator[_Entry]:
    with storage.open_read(url) as file:
        lines = file.read().splitlines()
    # the first line is the version
    yield from (msgspec.json.decode(line, type=_Entry) for line in lines[1:] if line)


learn(_Entry)
