"""Settings of the ``delta`` destination."""

from __future__ import annotations

from typing import Any, Literal, cast

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from conduit_dagster.connectors.base import ConnectorSettings
from conduit_dagster.connectors.columnar.columns import parse_columns


class DeltaDestinationSettings(ConnectorSettings):
    """Appends the documents of created and snapshot records to a Delta Lake table, a column per field."""

    path: str
    """The table's folder, or a URL that ``deltalake`` opens. Where there is no table, the first records make one."""
    columns: str = ""
    """The columns of a new table, such as ``id:long, name:string, amount:decimal(10,2)``; a table that is there must
    have them. Empty: a new table gets a column per field of the first block of records: its first value decides the
    type, and a field that is only null is a string."""
    unknown_fields: Literal["refuse", "ignore"] = Field("refuse", alias="unknown-fields")
    """What to do with a record that has a field, even a null one, for which there is no column: ``refuse`` nacks it;
    ``ignore`` leaves that field out."""
    app_id: str = Field("", alias="app-id")
    """The name under which the table remembers what this pipeline delivered; empty: ``conduit:PIPELINE:CONNECTOR``. To
    be changed where another project writes under the same name, or after this pipeline's state was deleted."""

    @field_validator("path")
    @classmethod
    def _not_empty(cls, path: str) -> str:
        if not path.strip():
            raise PydanticCustomError("path", "path is empty", {"fix": "name the table's folder"})
        return path

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, columns: str) -> str:
        parse_columns(columns)
        return columns


def as_delta(settings: Any) -> DeltaDestinationSettings:
    """The settings as the destination's own model."""
    return cast(DeltaDestinationSettings, settings)
