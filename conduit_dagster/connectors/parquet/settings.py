"""Settings of the ``parquet`` connector."""

from __future__ import annotations

from typing import Any, Literal, cast

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from conduit_dagster.connectors.base import ConnectorSettings
from conduit_dagster.connectors.columnar.columns import parse_columns


def _not_empty(path: str) -> str:
    if not path.strip():
        raise PydanticCustomError("path", "path is empty", {"fix": "name a file, a folder or a glob"})
    return path


class ParquetSourceSettings(ConnectorSettings):
    """Reads the rows of Parquet files, each a document. Files are read by name, and are not expected to change."""

    path: str
    """A file, a folder, or a glob such as ``in/*.parquet``. Files that appear later are read as they come."""
    key: str = ""
    """Columns that make the record's key, such as ``id`` or ``region, id``; empty: records have no key."""

    _check_path = field_validator("path")(_not_empty)

    @property
    def keys(self) -> list[str]:
        """The key's columns."""
        return [name for part in self.key.split(",") if (name := part.strip())]


class ParquetDestinationSettings(ConnectorSettings):
    """Writes the documents of created and snapshot records as Parquet files, a folder per step."""

    path: str
    """The folder. Every step becomes a folder of files in it, visible at once."""
    columns: str = ""
    """The columns of a new folder, such as ``id:long, name:string, amount:decimal(10,2)``. Empty: those of the first
    rows; of documents each field's first value decides the type, and a field that is only null is a string."""
    unknown_fields: Literal["refuse", "ignore"] = Field("refuse", alias="unknown-fields")
    """What to do with a record that has a field, even a null one, for which there is no column: ``refuse`` nacks it;
    ``ignore`` leaves that field out."""
    compression: Literal["zstd", "snappy", "gzip", "none"] = "zstd"
    """How pages are compressed."""

    _check_path = field_validator("path")(_not_empty)

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, columns: str) -> str:
        parse_columns(columns)
        return columns


def as_source(settings: Any) -> ParquetSourceSettings:
    """The settings as the source's own model."""
    return cast(ParquetSourceSettings, settings)


def as_destination(settings: Any) -> ParquetDestinationSettings:
    """The settings as the destination's own model."""
    return cast(ParquetDestinationSettings, settings)
