"""The ``parquet`` destination: a folder of Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import field_validator

from conduit_dagster import storage
from conduit_dagster.connectors.columnar.columns import ColumnsSettings, Schema, lacking, parse_columns
from conduit_dagster.connectors.columnar.parquet_writer import ColumnsDestination, ColumnsWriter, ParquetPart
from conduit_dagster.connectors.columnar.rows import RowReader, kept
from conduit_dagster.connectors.file.path_destination import (
    PartsFolder,
    PathDestination,
    PathLayout,
    countable_files,
    newest_file,
)
from conduit_dagster.connectors.path_settings import valid_path
from conduit_dagster.recovery.errors import FatalError, from_os_error
from conduit_dagster.sdk import ConnectorContext, Writer, WriterTask

FILE: Final = "_conduit_columns"
"""Name of the schema file. Readers of Parquet folders skip names that begin with ``_``."""


class FolderColumns:
    """Columns of a folder: an Arrow schema in a file there, created by the first writer and binding for all others."""

    def __init__(self, folder: str, asked: Schema) -> None:
        """``folder``: its URL; ``asked``: the columns in the setting, empty if none are set."""
        self._folder, self._asked = folder, asked
        self._file = storage.join(folder, FILE)

    def agreed(self, offered: Callable[[], Schema] | None = None) -> Schema | None:
        """Return the folder's columns; if it has none yet, set them: those of the setting, otherwise those ``offered``.

        Returns None without columns to agree on; without ``offered``, sets none. Raises ``FatalError`` if the setting
        names columns that the folder does not have.
        """
        try:
            there = self._read()
            if there is None and offered is not None:
                schema = self._asked or offered()
                if len(schema):
                    self._create(schema)
                    there = self._read()
        except OSError as error:
            raise from_os_error(error, f"can't write {self._folder}") from error
        if there is not None:
            self._require(there)
        return there

    def _read(self) -> Schema | None:
        try:
            with storage.open_read(self._file) as file:
                return pa.ipc.read_schema(pa.py_buffer(file.read()))
        except FileNotFoundError:
            return None
        except pa.ArrowException as error:
            raise FatalError(
                f"{FILE} is damaged: {error}",
                code="parquet.columns_damaged",
                place=self._file,
                fix="remove that file: the next rows make it anew; files that are there keep their columns",
            ) from error

    def _create(self, schema: Schema) -> None:
        """Create the schema file. Only one writer succeeds: later tasks use its columns."""
        storage.make_folder(self._folder)
        storage.put_new(self._file, schema.serialize().to_pybytes())

    def _require(self, there: Schema) -> None:
        if wrong := lacking(self._asked, there):
            raise FatalError(
                f"the files in {self._folder} are without the columns {', '.join(wrong)}",
                code="parquet.columns_differ",
                place=self._folder,
                fix="leave the setting columns out to take the folder's, or name another folder",
            )


def first_rows(file: pq.ParquetFile, rows: int) -> list[dict[str, Any]]:
    """Return the first rows of a file, by column."""
    batch = next(file.iter_batches(batch_size=rows), None)
    return [] if batch is None else batch.slice(0, rows).to_pylist()


class ParquetDestinationSettings(ColumnsSettings):
    """Writes the documents of created and snapshot records as Parquet files, a folder per step."""

    path: str
    """The folder. Every step becomes a folder of files in it, visible at once."""
    compression: Literal["zstd", "snappy", "gzip", "none"] = "zstd"
    """Compression of the pages."""

    _check_path = field_validator("path")(valid_path)


class ParquetDestination(PathDestination, ColumnsDestination):
    """Rows of Parquet files, each exactly once after any crash. Each delivery is one folder, ``step=NUMBER-SKIP-HASH``.

    Spark reads everything with ``spark.read.parquet(path)`` and sees the step as a partition column, which hides a
    column ``step`` of the rows' own; ``path/*`` leaves it out. Within a step's files, rows are in source order. All
    files have the same columns.
    """

    name = "parquet"
    Settings = ParquetDestinationSettings
    settings: ParquetDestinationSettings
    strategies = frozenset({"exactly-once", "at-least-once", "at-most-once"})

    def __init__(self, settings: ParquetDestinationSettings, context: ConnectorContext) -> None:
        super().__init__(settings, context, settings.path)

    def row_count(self) -> int | None:
        """Return the number of rows from the files' footers; None for many files."""
        files = countable_files(self._path)
        return None if files is None else sum(pq.read_metadata(file).num_rows for file in files)

    def preview(self, rows: int) -> Sequence[Mapping[str, Any]]:
        """Return the first rows of the newest file."""
        newest = newest_file(self._path)
        if newest is None:
            return ()
        with pq.ParquetFile(newest) as file:
            return first_rows(file, rows)

    def _layout_at(self, path: Path) -> PathLayout:
        return PartsFolder(path, self.context)

    def check(self) -> None:
        """Create the folder, and compare its columns with those of the setting."""
        super().check()
        self._columns().agreed()

    def _columns(self) -> FolderColumns:
        return FolderColumns(str(self._path), parse_columns(self.settings.columns))

    def writer(self, task: WriterTask) -> Writer:
        """Return a writer of Parquet that agrees with the other tasks on the columns when it gets its first rows."""
        part = ParquetPart(task, self.settings.compression)
        return ColumnsWriter(part, self.name, self._reader, kept)

    def _reader(self, offered: Callable[[], Schema]) -> RowReader | None:
        schema = self._columns().agreed(offered)
        return None if schema is None else RowReader(schema, self.settings.unknown_fields, self.name)
