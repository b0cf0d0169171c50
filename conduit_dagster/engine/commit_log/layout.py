"""Where a log's files lie: ``LOG/PIPELINE/SOURCE/segment=FIRST/FIRST-TOKEN.parquet``, a folder that Spark reads.

A file that the manifest does not name yet begins with ``_``: Spark and its like pass it over.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from conduit_dagster.state import storage

_HIDDEN = "_"


def part_name(first: int, token: str) -> str:
    """A file's name once it is in the manifest. ``token`` is random, one per execution of a task."""
    return f"{first:020d}-{token}.parquet"


def hidden(name: str) -> str:
    """The file's name before that."""
    return _HIDDEN + name


def shown(name: str) -> str:
    """The manifest's name of a file as it was found in a folder."""
    return name.removeprefix(_HIDDEN)


@dataclass(frozen=True)
class LogFolder:
    """The log of one source."""

    base: str
    """URL of all logs."""
    pipeline: str
    source: str

    @property
    def url(self) -> str:
        """Its folder."""
        return storage.join(self.base, storage.safe_name(self.pipeline), storage.safe_name(self.source))

    def segment(self, first: int) -> str:
        """The folder of the segment whose first offset is ``first``."""
        return storage.join(self.url, f"segment={first:020d}")

    def sync(self, segment: int) -> None:
        """Makes the names in a segment's folder durable, and the folder's own. Before the manifest names a file in it.

        The folders up to ``base`` are synced as well; that ``base`` itself is in its parent is the caller's matter.
        """
        pipeline = self.url.rsplit("/", 1)[0]
        for url in (self.segment(segment), self.url, pipeline, self.base):
            storage.sync(url)

    def publish_name(self, segment: int, name: str) -> None:
        """Gives a file its name for everybody, after the manifest names it. May be repeated at any time."""
        folder = self.segment(segment)
        old, new = storage.join(folder, hidden(name)), storage.join(folder, name)
        length = storage.size(old)
        if length is None:
            return
        if storage.size(new) == length:  # a copy that was made, whose original was not removed
            remove(old)
        else:
            _rename(old, new)

    def names(self, segment: int) -> list[str]:
        """The files in a segment's folder, as they are called now."""
        folder = self.segment(segment)
        path = storage.local_path(folder)
        if path is not None:
            return sorted(p.name for p in path.iterdir() if p.is_file()) if path.is_dir() else []
        fs, name = _remote(folder)
        fs.invalidate_cache(name)
        found = fs.ls(name, detail=True) if fs.exists(name) else []
        return sorted(e["name"].rsplit("/", 1)[-1] for e in found if e["type"] == "file")


def remove(url: str) -> None:
    """Removes a file; nothing happens where there is none."""
    path = storage.local_path(url)
    if path is not None:
        path.unlink(missing_ok=True)
        return
    fs, name = _remote(url)
    if fs.exists(name):
        fs.rm_file(name)


def _rename(old: str, new: str) -> None:
    path = storage.local_path(old)
    if path is not None:
        path.rename(Path(storage.local_path(new) or new))
        return
    fs, name = _remote(old)
    fs.mv(name, _remote(new)[1])


def _remote(url: str) -> tuple[Any, str]:
    return fsspec.core.url_to_fs(url)
