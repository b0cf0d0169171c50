"""Settings of the ``delta`` destination."""

from __future__ import annotations

from typing import Any, cast

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from conduit_dagster.connectors.columnar.settings import ColumnsSettings


class DeltaDestinationSettings(ColumnsSettings):
    """Appends the documents of created and snapshot records to a Delta Lake table, a column per field."""

    path: str
    """The table's folder, or a URL that ``deltalake`` opens. Where there is no table, the first records make one."""
    app_id: str = Field("", alias="app-id")
    """The name under which the table remembers what this pipeline delivered; empty: ``conduit:PIPELINE:CONNECTOR``. To
    be changed where another project writes under the same name, or after this pipeline's state was deleted."""

    @field_validator("path")
    @classmethod
    def _not_empty(cls, path: str) -> str:
        if not path.strip():
            raise PydanticCustomError("path", "path is empty", {"fix": "name the table's folder"})
        return path


def as_delta(settings: Any) -> DeltaDestinationSettings:
    """The settings as the destination's own model."""
    return cast(DeltaDestinationSettings, settings)
