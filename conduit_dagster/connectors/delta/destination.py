"""The ``delta`` destination."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import Field, field_validator

from conduit_dagster import storage
from conduit_dagster.connectors.columnar.columns import ColumnsSettings, Schema, lacking, parse_columns
from conduit_dagster.connectors.columnar.parquet_writer import ColumnsDestination, ColumnsWriter, ParquetPart
from conduit_dagster.connectors.columnar.rows import RowReader, storable
from conduit_dagster.connectors.delta.commits import Commits
from conduit_dagster.connectors.delta.table import DeltaTableLog
from conduit_dagster.connectors.path_settings import located, valid_path
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import ConnectorContext, Delivery, Target, Writer, WriterTask


class DeltaDestinationSettings(ColumnsSettings):
    """Appends the documents of created and snapshot records to a Delta Lake table, one column per field."""

    path: str
    """The table's folder, or a URL that ``deltalake`` opens. A missing table is created with the first records."""
    app_id: str = Field("", alias="app-id")
    """The application id under which the table records this pipeline's deliveries; empty:
    ``conduit:PIPELINE:CONNECTOR``. Change it if another project writes under the same id, or after this pipeline's
    state was deleted.
    """

    _check_path = field_validator("path")(valid_path)


STAGING = "_conduit_staging"
"""Staging folder inside the table's folder, so that parts need no copy; readers and vacuum skip it."""
_APP_ID = "app-id "


class DeltaDestination(ColumnsDestination):
    """Rows of a Delta table, each once after any crash: a delivery and its mark are one commit of the table's log.

    A table has no order; rows within a file are in the source's order, and file names sort by step. A RESTORE of the
    table to an earlier version removes rows but keeps the marks: the removed rows are not delivered again.
    """

    name = "delta"
    Settings = DeltaDestinationSettings
    settings: DeltaDestinationSettings
    strategies = frozenset({"exactly-once", "at-least-once", "at-most-once"})

    def __init__(self, settings: DeltaDestinationSettings, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._columns: Schema = parse_columns(settings.columns)
        self._table = DeltaTableLog(located(context, settings.path))
        self._once = context.strategy == "exactly-once"
        self._commits = Commits(self._table, context.pipeline, settings.app_id, self._once)

    @property
    def address(self) -> str:
        """Path of the table, or its URL without secrets."""
        return self._table.address

    @property
    def _place(self) -> str:
        """The address as targets name it: a path inside the project is relative to it, which may be moved."""
        return storage.inside(self.address, self.context.root)

    @property
    def hashes_at(self) -> str | None:
        """The application id of the table's transactions, if it is set."""
        return f"{_APP_ID}{self.settings.app_id}" if self.settings.app_id else None

    def row_count(self) -> int | None:
        """Return the number of rows from the table's log; None if it has none, or if rows may be deleted in place."""
        with self._table.mapped("can't read"):
            return self._table.row_count()

    def preview(self, rows: int) -> Sequence[Mapping[str, Any]]:
        """Return a few rows, in no particular order."""
        with self._table.mapped("can't read"):
            return self._table.first_rows(rows)

    def check(self) -> None:
        """Check that the table can be appended to, or its folder created; does not create the table itself.

        With exactly-once, the table must also remember its deliveries for as long as one may be repeated.
        """
        with self._table.mapped("can't write the table"):
            if self._table.local is not None:
                (self._table.local / STAGING).mkdir(parents=True, exist_ok=True)
            table = self._table.open()
            if table is None:
                self._table.require_free()
            else:
                self._require_columns(self._table.writable(table))
                if self._once:
                    self._table.require_lasting(table)

    def _require_columns(self, there: Schema) -> None:
        if wrong := lacking(self._columns, there):
            raise FatalError(
                f"the Delta table {self.address} is there without the columns {', '.join(wrong)}",
                code="delta.columns_differ",
                place=self.address,
                fix="add them to the table (docs/columns.md, A new field), leave the setting columns out to take the "
                "table as it is, or name another table",
            )

    def staging(self, default: str) -> str:
        """Return the staging folder inside the table's folder."""
        del default
        return self.context.folder_in(storage.join(self._table.uri, STAGING))

    def target(self, previous: Target | None) -> Target:
        """Return the table's place; a delivery's file names come from its step and hash."""
        del previous
        return {"table": self._place}

    def writer(self, task: WriterTask) -> Writer:
        """Return a writer that stages Parquet and looks up the table's columns at its first document."""
        return ColumnsWriter(ParquetPart(task), self.name, self._reader, storable)

    def _reader(self, offered: Callable[[], Schema]) -> RowReader | None:
        """Return a reader for the table's columns; None if the table is missing and these columns can't create it.

        Tasks agree on a new table's columns by creating it empty: the first creator's columns win. That publishes
        nothing, and a step is prepared only for columns that exist in a table.
        """
        table = self._table.open()
        if table is None:
            schema = self._columns or offered()
            if not len(schema):
                return None
            table = self._table.create(schema)
        with self._table.mapped("can't read the columns of"):
            there = self._table.writable(table)
        self._require_columns(there)
        return RowReader(there, self.settings.unknown_fields, self.name)

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the table's log has committed this delivery, whichever files now hold its rows."""
        self._require_target(delivery)
        with self._table.mapped("can't read"):
            return self._commits.holds(delivery)

    def never_takes(self, hashes: str | None, delivery: Delivery) -> bool:
        """Return whether the table refuses the delivery under the application id that the setting was before."""
        app_id = (hashes or "").removeprefix(_APP_ID)
        before = Commits(self._table, self.context.pipeline, app_id, self._once)
        with self._table.mapped("can't read"):
            return before.refuses(delivery)

    def publish(self, delivery: Delivery) -> Target:
        """Publish the delivery in one commit; a delivery that the table already has is never committed again."""
        self._require_target(delivery)
        if delivery.parts:
            with self._table.mapped("can't commit to"):
                self._commits.publish(delivery)
        return delivery.target

    def settled(self, delivery: Delivery) -> Target:
        """Sync the table's log; data files were durable before they were committed."""
        with self._table.mapped("can't sync"):
            self._commits.settle()
        return delivery.target

    def _require_target(self, delivery: Delivery) -> None:
        was = delivery.target.get("table", self._place)
        if was not in (self._place, self.address):  # earlier versions stored whole paths
            raise FatalError(
                f"step {delivery.step} was prepared for the table {was}, but the destination is {self._place} now",
                code="delivery.target_changed",
                place=self.address,
                fix=f"set path back to {was}, let the pipeline finish the step, then change it",
            )
