"""What connectors are given and name: settings, context, idempotency keys of side effects, external data sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from conduit_dagster import storage
from conduit_dagster.config.delivery import Strategy
from conduit_dagster.expressions import Clock
from conduit_dagster.node_ids import node_id
from conduit_dagster.record import READ_AT, SOURCE_CONNECTOR_ID, Record


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


RecordKey = tuple[str, int, str]
"""Source, its generation, and the record's position: the same for every attempt, and unique to the record.

The source is the connector's id; of joined records their ids joined by ``+``, and of records that are sent again a name
of its own with ``@``.
"""


@dataclass
class IdempotencyKeys:
    """Idempotency keys of a worker's current step.

    One object per compiled pipeline; the engine sets it before the first record of a step, and :attr:`source` before
    each block. Nothing of a key is read off metadata, which processors may replace.
    """

    hashes: dict[str, str] = field(default_factory=dict[str, str])
    """Consumer to delivery hash; the empty name holds the step's own, for everything before the fan-out."""
    generations: dict[str, int] = field(default_factory=dict[str, int])
    source: str = ""
    """The source of the records at hand, as their step names it."""

    def hash_of(self, consumer: str = "") -> str:
        """Return the delivery hash of a consumer; empty outside a step."""
        return self.hashes.get(consumer, "")

    def key_of(self, record: Record) -> RecordKey:
        """Return the key of a record at hand. A record that a processor derived from another one has the same key."""
        return self.source, self.generations.get(self.source, 0), str(record.position)


class Dataset(NamedTuple):
    """A data set, named as in OpenLineage's specification. Holds no secrets."""

    namespace: str
    """The system or store: ``postgres://host:5432``, ``s3://bucket``, ``file``."""
    name: str
    """The data set within it: ``database.schema.table``, ``folder/file``, ``/absolute/path``."""
    is_table: bool = False

    @property
    def uri(self) -> str:
        """``postgres://host:5432/database/schema/table``, ``s3://bucket/folder/file``, ``file:///absolute/path``."""
        if self.is_table:
            return "/".join([self.namespace, *self.name.split(".")])
        return f"file://{self.name}" if self.namespace == "file" else f"{self.namespace}/{self.name.lstrip('/')}"


def dataset_at(place: str | None) -> Dataset | None:
    """Return the data set at an absolute path or a URL; None for anything else."""
    if place is None:
        return None
    if place.startswith("/"):
        return Dataset("file", place)
    if "://" not in place:
        return None
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Dataset("file", parts.path)
    host = parts.netloc.rpartition("@")[2]
    return Dataset(f"{parts.scheme}://{host}", parts.path.lstrip("/") or "/") if host else None
