"""The ``parquet`` destination: a folder of Parquet files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from conduit_dagster.connectors.columnar.columns import Schema, parse_columns
from conduit_dagster.connectors.columnar.fitting import kept
from conduit_dagster.connectors.columnar.parquet_part import ParquetPart
from conduit_dagster.connectors.columnar.rows import RowReader
from conduit_dagster.connectors.columnar.writer import ColumnsWriter
from conduit_dagster.connectors.file.laid_out import LaidOut
from conduit_dagster.connectors.file.layout import Layout
from conduit_dagster.connectors.file.parts import PartsFolder
from conduit_dagster.connectors.parquet.folder_columns import FolderColumns
from conduit_dagster.connectors.parquet.settings import ParquetDestinationSettings, as_destination
from conduit_dagster.sdk import ConnectorContext, Keys, Writer, WriterTask


class ParquetDestination(LaidOut):
    """Rows of Parquet files, each once after any crash. Each delivery is one folder, ``step=NUMBER-SKIP-HASH``.

    Spark reads the whole with ``spark.read.parquet(path)`` and sees the step as a partition column; ``path/*`` leaves
    that column out. Within a step's files rows are in the source's order. All files have the same columns.
    """

    name = "parquet"
    Settings = ParquetDestinationSettings
    strategies = frozenset({"exactly-once", "at-least-once", "at-most-once"})
    reads_keys = Keys.NONE
    changes_records = False
    takes_rows = True

    def __init__(self, settings: Any, context: ConnectorContext) -> None:
        self._settings = as_destination(settings)
        super().__init__(settings, context, self._settings.path)

    def _laid_out(self, path: Path) -> Layout:
        return PartsFolder(path, self.context)

    def check(self) -> None:
        """Makes the folder, and compares its columns with the setting's."""
        super().check()
        self._columns().agreed()

    def _columns(self) -> FolderColumns:
        return FolderColumns(str(self._path), parse_columns(self._settings.columns))

    def writer(self, task: WriterTask) -> Writer:
        """Stages Parquet; agrees with the other tasks on the columns when it gets its first rows."""
        part = ParquetPart(task, self._settings.compression)
        return ColumnsWriter(part, self.name, self._reader, kept)

    def _reader(self, offered: Callable[[], Schema]) -> RowReader | None:
        schema = self._columns().agreed(offered)
        return None if schema is None else RowReader(schema, self._settings.unknown_fields, self.name)
