"""The source ``spark:FORMAT``: rows of a Spark data source, landed as Parquet files and read from there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from conduit_dagster import storage
from conduit_dagster.config.project import Project
from conduit_dagster.connectors.parquet.parquet_position import parse_position
from conduit_dagster.connectors.parquet.parquet_scan import ParquetScan
from conduit_dagster.connectors.parquet.row_files import RowFiles
from conduit_dagster.connectors.spark.driver_session import has_session
from conduit_dagster.connectors.spark.lander import Lander, SnapshotLander, StreamLander
from conduit_dagster.connectors.spark.landing import Landing, number_of
from conduit_dagster.connectors.spark.settings import SparkSourceSettings
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.record import Mode
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import Limit, Position, ResumeState
from conduit_dagster.spark.jobs import JobCancelled


class SparkSource(RowFiles):
    """A document per row. Spark's rows have no positions, so they land beside the commit log and are read from there.

    With ``read: batch`` a snapshot lands once, with ``read: stream`` each micro-batch of a query whose checkpoint is
    stored there as well: landed rows are never requested again. Nothing is lost or duplicated between Spark and the
    landing, as far as the format itself guarantees that: a stream that can't replay a batch loses the rows in flight.
    """

    name = "spark"
    Settings = SparkSourceSettings
    settings: SparkSourceSettings
    format: ClassVar[str] = "FORMAT"
    _failure: TransientError | None = None

    @property
    def _identity(self) -> str:
        return self.settings.identity(self.name, self.settings.read, self.settings.ddl)

    @lazy_property
    def _landing(self) -> Landing:
        base = storage.join(Project.find(Path(self.context.root)).log_url, storage.safe_name(self.context.pipeline))
        own = storage.safe_name(self.context.connector)
        return Landing(storage.join(base, "~landing", own, self._identity))

    def _make_scan(self) -> ParquetScan:
        return ParquetScan(self._landing, self._landing.url)

    @lazy_property
    def _lander(self) -> Lander:
        kind = SnapshotLander if self.settings.read == "batch" else StreamLander
        return kind(self.format, self.settings, self.context, self._landing)

    @property
    def unit(self) -> dict[str, Any]:
        """Format, and a digest of its options without credentials."""
        return {"plugin": self.name, "data": self._identity}

    def resume(self, state: ResumeState) -> None:
        """Raise ``FatalError`` if what was read is not in this landing, before anything lands there."""
        self._landing.forget()
        self._require_rest(state.position)

    def horizon(self) -> Any:
        """Land available rows and return the files that exist then; without a Spark session, those landed before.

        If Spark fails, :meth:`latest` raises its error once the rows that landed before are read.
        """
        self._failure = None
        if has_session():
            try:
                self._lander.land()
            except JobCancelled:
                raise
            except TransientError as error:
                self._failure = error
        return super().horizon()

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the position reached by reading landed rows up to the limit; if all are read, query Spark for more."""
        self._require_rest(start)
        end = super().latest(start, limit, horizon)
        if end == start and horizon is None and self._lander.is_due():
            end = self._landed(start, limit)
        elif end == start and self._failure is not None:
            raise self._failure
        return end

    def _landed(self, start: Position, limit: Limit) -> Position:
        """Query Spark, and return the position reached by reading what landed. Raises its error if nothing did."""
        try:
            self._lander.land()
        except JobCancelled:
            raise
        except TransientError:
            end = super().latest(start, limit)
            if end == start:
                raise
            return end
        return super().latest(start, limit)

    def _require_rest(self, start: Position) -> None:
        """Raise ``FatalError`` if batches after the position were removed, or if those before it are not there."""
        there, read = self._landing.batches(), _batch_of(start)
        # the newest batch is never removed; a new landing begins at 1 again, and its rows would count as read
        newest = there[-1].number if there else 0
        if newest < read:
            raise FatalError(
                f"batches up to {read} of what landed were read, but the newest one there is {newest}",
                code="spark.landing_lost",
                place=self._landing.url,
                fix="put that folder back, or set state.log or state.staging back; if it is lost, read everything "
                "again with conduit-dagster positions rewind PIPELINE CONNECTOR --to-start",
            )
        if there and there[0].number > read + 1:
            raise FatalError(
                f"batches {read + 1} to {there[0].number - 1} of what landed were removed, for they had been acked",
                code="spark.landing_removed",
                place=self._landing.url,
                fix="rewind to a later place; the setting keep says how long what was acked stays",
            )

    def ack(self, upto: Position, generation: int) -> None:
        """Remove batches acked at least ``keep`` ago, except the newest one."""
        self._landing.acked(_batch_of(upto), generation, self.settings.keep)

    def collection_modes(self, position: Position) -> Mapping[str, Mode]:
        """Return ``complete`` once a snapshot is read; a stream has no end."""
        return super().collection_modes(position) if self.settings.read == "batch" else {}

    def _collection(self, file: str) -> str:
        return self.settings.collection

    def _describe(self, url: str) -> dict[str, str]:
        return {"spark.format": self.format}


def _batch_of(position: Position) -> int:
    files = parse_position(position).files
    return number_of(files[-1].name) if files else 0
