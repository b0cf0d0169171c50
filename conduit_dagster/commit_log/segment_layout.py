"""Layout of the log's files, ``LOG/PIPELINE/SOURCE/segment=FIRST/FIRST-TOKEN.parquet``, and tasks' reports on them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

import msgspec

from conduit_dagster import storage
from conduit_dagster.record import Mode
from conduit_dagster.sdk.staging import discard_file
from conduit_dagster.state.log_store import LogPart


class Last(msgspec.Struct, frozen=True):
    """The last entry of a namespace in a file."""

    offset: int
    mode: Mode


class Written(msgspec.Struct, frozen=True):
    """A finished file, as reported by the task to the driver."""

    name: str
    first: int
    entries: int
    bytes: int
    sha256: str
    nacked: int
    namespaces: dict[str, Last]

    def appended(self, segment: int, position: Any) -> LogPart:
        """Return its manifest row, as an append of consecutive offsets."""
        end = self.first + self.entries
        return LogPart(
            self.first, end, segment, self.name, self.entries, self.bytes, self.sha256, self.nacked, False, position
        )


_HIDDEN = "_"


def part_name(first: int, token: str) -> str:
    """Return a file's name after it is listed in the manifest. ``token`` is random, one per execution of a task."""
    return f"{first:020d}-{token}.parquet"


def hidden(name: str) -> str:
    """Return the file's name before it is listed in the manifest."""
    return _HIDDEN + name


def shown(name: str) -> str:
    """Return the manifest's name of a file found in a folder."""
    return name.removeprefix(_HIDDEN)


@dataclass(frozen=True)
class LogFolder:
    """The log of one source."""

    base: str
    """URL of all logs."""
    pipeline: str
    source: str
    reader: str = ""
    """Arguments of ``positions rewind`` for who reads the log, with ``{}`` for the offset; empty: the source itself."""
    is_inspected: bool = False
    """Whether no step reads it here, but a command or a compaction: entries that it lacks hold up nothing."""

    def rewind(self, offset: int | str) -> str:
        """Return the command with which its reader goes on from an offset, and gives up what is before it."""
        reader = self.reader or f"{shlex.join([self.pipeline, self.source])} --to-offset {{}}"
        return f"conduit-dagster positions rewind {reader.replace('{}', str(offset))} --force"

    @property
    def url(self) -> str:
        """URL of the log's folder."""
        return storage.join(self.base, storage.safe_name(self.pipeline), storage.safe_name(self.source))

    def segment(self, first: int) -> str:
        """Return the folder of the segment whose first offset is ``first``."""
        return storage.join(self.url, f"segment={first:020d}")

    def sync(self, segment: int) -> None:
        """Make the names in a segment's folder, and the folder's own, durable before the manifest lists a file in it.

        The folders up to ``base`` are synced as well; the caller must sync the entry of ``base`` in its parent.
        """
        pipeline = self.url.rsplit("/", 1)[0]
        for url in (self.segment(segment), self.url, pipeline, self.base):
            storage.sync(url)

    def publish_name(self, segment: int, name: str) -> None:
        """Give a file its public name, after the manifest lists it. May be repeated at any time."""
        folder = self.segment(segment)
        old, new = storage.join(folder, hidden(name)), storage.join(folder, name)
        length = storage.size(old)
        if length is None:
            return
        if storage.size(new) != length:
            try:
                storage.rename(old, new)
                return
            except OSError:
                if storage.size(new) != length:
                    raise
        discard_file(old)  # a copy's original: a store copies, and may have been killed or refused to remove it

    def segments(self) -> list[int]:
        """Return the first offsets of all segments that have a folder, also of those that the manifest lacks."""
        names = [name.partition("segment=")[2] for name in storage.folders(self.url)]
        return sorted(int(name) for name in names if name.isdecimal())

    def names(self, segment: int) -> list[str]:
        """Return the names of the files in a segment's folder."""
        return storage.files(self.segment(segment))
