"""Settings that all connectors of columns share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from conduit_dagster.connectors.columnar.columns import parse_columns
from conduit_dagster.sdk import ConnectorSettings


class RowSourceSettings(ConnectorSettings):
    """Of a source of rows."""

    key: str = ""
    """Columns that make the record's key, such as ``id`` or ``region, id``; empty: records have no key."""

    @property
    def keys(self) -> list[str]:
        """The key's columns."""
        return [name for part in self.key.split(",") if (name := part.strip())]


class ColumnsSettings(ConnectorSettings):
    """Of a destination with a column per field."""

    columns: str = ""
    """The columns of a new table or folder, such as ``id:long, name:string, amount:decimal(10,2)``; one that is there
    must have them. Empty: those of the first rows; of documents, the first block's: a field's first value decides the
    type, and a field that is only null is a string."""
    unknown_fields: Literal["refuse", "ignore"] = Field("refuse", alias="unknown-fields")
    """What to do with a record that has a field, even a null one, for which there is no column: ``refuse`` nacks it;
    ``ignore`` leaves that field out."""

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, columns: str) -> str:
        parse_columns(columns)
        return columns
