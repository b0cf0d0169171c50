"""The ``parquet`` source: the rows of Parquet files."""

from __future__ import annotations

from typing import Any

from pydantic import field_validator

from conduit_dagster.connectors.columnar.columns import RowSourceSettings
from conduit_dagster.connectors.file.listing import is_many, require_local
from conduit_dagster.connectors.parquet.parquet_folder import ListedFiles
from conduit_dagster.connectors.parquet.parquet_scan import ParquetScan
from conduit_dagster.connectors.parquet.row_files import RowFiles
from conduit_dagster.connectors.path_settings import (
    CollectionPattern,
    check_collection,
    located,
    shown_path,
    valid_path,
)
from conduit_dagster.sdk import ConnectorContext


class ParquetSourceSettings(RowSourceSettings):
    """Reads the rows of Parquet files, each as a document. Files are read by name, and must not change."""

    path: str
    """A file, a folder, or a glob such as ``in/*.parquet``; ``in/*/*.parquet`` for a dataset that is partitioned once,
    or for the folder of a ``parquet`` destination. Files that appear later are read too."""
    collection: str = ""
    """The records' collection (``opencdc.collection``), their key in the commit log: a name such as ``orders``, or a
    regular expression (RE2) with one group, searched in the file's name: ``^([a-z]+)-`` extracts ``orders`` from
    ``orders-2024.parquet``. Files that do not match have no collection. Empty: records have no collection.
    """

    _check_path = field_validator("path")(valid_path)
    _check_collection = field_validator("collection")(check_collection)


class ParquetSource(RowFiles):
    """A document per row, in the order of the files' names; files that appear later follow.

    Rows stay Arrow columns if no processor needs documents and the destinations take columns (``delta``, ``parquet``,
    ``spark:FORMAT``).
    """

    name = "parquet"
    Settings = ParquetSourceSettings
    settings: ParquetSourceSettings

    def __init__(self, settings: ParquetSourceSettings, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._path = located(context, settings.path)
        if is_many(settings.path, context.root):
            require_local(settings.path)
        self._collections = CollectionPattern(settings.collection)

    def _make_scan(self) -> ParquetScan:
        return ParquetScan(ListedFiles(self.settings.path, self._path, self.context.root), self._path)

    @property
    def unit(self) -> dict[str, Any]:
        """Absolute path: the spelling in the pipeline file does not change the data."""
        return {"plugin": self.name, "path": self._path}

    def _collection(self, file: str) -> str:
        return self._collections.of(file)

    def _describe(self, url: str) -> dict[str, str]:
        """Return the file's path, relative to the project root if the setting is relative."""
        return {"file.path": shown_path(self.context, self.settings.path, url)}
