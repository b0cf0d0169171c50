"""Settings of Conduit's own processors."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from conduit_dagster.sdk import ProcessorSettings


class ConduitSettings(ProcessorSettings):
    """Settings parsed as in Conduit: blanks around keys and values are trimmed, an empty value means the default.

    Settings with a pattern as name, such as ``headers.*``, may be empty.
    """

    @model_validator(mode="before")
    @classmethod
    def _sanitized(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        trimmed = {key.strip(): value.strip() if isinstance(value, str) else value for key, value in given.items()}
        declared = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: value for key, value in trimmed.items() if value != "" or key not in declared}
