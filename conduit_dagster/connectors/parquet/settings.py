"""Settings of the ``parquet`` connector."""

from __future__ import annotations

from typing import Any, Literal, cast

from pydantic import field_validator

from conduit_dagster.connectors.columnar.settings import ColumnsSettings, RowSourceSettings
from conduit_dagster.connectors.file.settings import not_empty


class ParquetSourceSettings(RowSourceSettings):
    """Reads the rows of Parquet files, each a document. Files are read by name, and are not expected to change."""

    path: str
    """A file, a folder, or a glob such as ``in/*.parquet``. Files that appear later are read as they come."""

    _check_path = field_validator("path")(not_empty)


class ParquetDestinationSettings(ColumnsSettings):
    """Writes the documents of created and snapshot records as Parquet files, a folder per step."""

    path: str
    """The folder. Every step becomes a folder of files in it, visible at once."""
    compression: Literal["zstd", "snappy", "gzip", "none"] = "zstd"
    """How pages are compressed."""

    _check_path = field_validator("path")(not_empty)


def as_source(settings: Any) -> ParquetSourceSettings:
    """The settings as the source's own model."""
    return cast(ParquetSourceSettings, settings)


def as_destination(settings: Any) -> ParquetDestinationSettings:
    """The settings as the destination's own model."""
    return cast(ParquetDestinationSettings, settings)
