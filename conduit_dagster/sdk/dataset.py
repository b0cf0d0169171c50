"""Names of external data sets: the key on which lineage tools join."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit


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
        return f"file://{self.name}" if self.namespace == "file" else f"{self.namespace}/{self.name}"


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
    return Dataset(f"{parts.scheme}://{host}", parts.path.lstrip("/")) if host else None
