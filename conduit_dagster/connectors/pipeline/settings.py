"""Settings of the ``pipeline`` source."""

from __future__ import annotations

from typing import Any, cast

from pydantic import Field

from conduit_dagster.sdk import ConnectorSettings


class PipelineSourceSettings(ConnectorSettings):
    """Reads another pipeline of the project, which need not be running."""

    pipeline: str = Field(min_length=1)
    """The other pipeline's id."""
    connector: str = ""
    """One of its connectors. A source: its records as they were logged; that pipeline needs ``log: records``. A
    destination with the plugin ``file``: what has been published of its output. Left out: the only source."""


def as_own(settings: Any) -> PipelineSourceSettings:
    """The settings as the source's own model."""
    return cast(PipelineSourceSettings, settings)
