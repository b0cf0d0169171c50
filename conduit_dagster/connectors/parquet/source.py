"""The ``parquet`` source: the rows of Parquet files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from conduit_dagster.connectors.parquet.listed import ListedFiles
from conduit_dagster.connectors.parquet.row_files import RowFiles
from conduit_dagster.connectors.parquet.settings import ParquetSourceSettings, as_source
from conduit_dagster.connectors.parquet.survey import Survey
from conduit_dagster.sdk import ConnectorContext
from conduit_dagster.state import storage


class ParquetSource(RowFiles):
    """A document per row, in the order of the files' names; files that appear later follow.

    Rows stay Arrow columns where no processor asks for documents and the destinations take them (``delta``,
    ``parquet``, ``spark:FORMAT``).
    """

    name = "parquet"
    Settings = ParquetSourceSettings

    def __init__(self, settings: Any, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._settings = as_source(settings)
        self._path = context.resolve(self._settings.path)

    def _made_survey(self) -> Survey:
        return Survey(ListedFiles(self._settings.path, self._path, self.context.root), self._path)

    @property
    def _keys(self) -> Sequence[str]:
        return self._settings.keys

    @property
    def unit(self) -> dict[str, Any]:
        """The absolute path: however it is spelt in the pipeline file, it is the same data."""
        return {"plugin": self.name, "path": self._path}

    def _describe(self, url: str) -> dict[str, str]:
        """The path as written."""
        is_relative = storage.local_path(self._settings.path) and not self._settings.path.startswith(("/", "file:"))
        return {"file.path": os.path.relpath(url, self.context.root) if is_relative else url}
