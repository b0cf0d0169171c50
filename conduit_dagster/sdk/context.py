"""Settings and context of a connector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from conduit_dagster import storage
from conduit_dagster.config.delivery import Strategy
from conduit_dagster.expressions import Clock
from conduit_dagster.node_ids import node_id
from conduit_dagster.record import READ_AT, SOURCE_CONNECTOR_ID


class ConnectorSettings(BaseModel):
    """Base of a connector's settings. Values arrive as strings, as in Conduit's files."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    open_keys: ClassVar[tuple[str, ...]] = ()
    """Patterns (``fnmatch``) of keys beyond the fields, such as ``format.options.*``."""
    idle_keys: ClassVar[Mapping[str, str]] = {}
    """Patterns of Conduit settings that have no effect here, each with the reason, which ``validate`` reports."""


@dataclass(frozen=True)
class ConnectorContext:
    """A connector's identity and location in its project."""

    pipeline: str
    connector: str
    root: str
    """The project root, the base of relative paths in settings."""
    clock: Clock
    strategy: Strategy = "at-least-once"

    @property
    def full_id(self) -> str:
        """The id that Conduit writes into metadata: ``pipeline:connector``."""
        return node_id(self.pipeline, self.connector)

    @property
    def labels(self) -> dict[str, str]:
        """Metadata of every record of a source that ``sets_metadata``: its connector's id and the time of the read."""
        return {SOURCE_CONNECTOR_ID: self.full_id, READ_AT: str(self.clock.now_ns)}

    def resolve(self, path: str) -> str:
        """Return ``path`` made absolute against the project root; a URL is returned unchanged."""
        return resolved(path, self.root)

    def folder_in(self, parent: str) -> str:
        """Return the URL of this connector's own folder below ``parent``, safe for any pipeline and connector id."""
        return storage.join(parent, storage.safe_name(self.pipeline), storage.safe_name(self.connector))


def resolved(path: str, root: str) -> str:
    """Return ``path`` made absolute against the project root; a URL is returned unchanged."""
    return path if "://" in path else str(Path(root, path))
