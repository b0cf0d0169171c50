"""A file source's position: how far each file is read, and the lists with fully read files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from conduit_dagster.connectors.file.copy_ends import CopyEnd
from conduit_dagster.connectors.file.listing import TrackedFile
from conduit_dagster.connectors.kept_lists import FinishedLists
from conduit_dagster.msgspec_warmup import learn

_OBSERVED = ("size", "modified", "changed", "birth", "ahead", "ahead_mark")
"""Fields that may differ between observations: not part of a place, which goes into the delivery hash."""
_NAMED = 8
"""Maximum number of files that a place names individually; more are digested."""


class FilePosition(msgspec.Struct, frozen=True):
    """Position of a file source: the tracked files that still matter, in reading order."""

    seen: int = 0
    files: tuple[TrackedFile, ...] = ()
    read: FinishedLists | None = None
    """None: every file is in ``files``."""
    copied: Mapping[str, CopyEnd] = msgspec.field(default_factory=dict)
    """Ends of the finished copies, by collection. Not part of a place, so that delivery hashes do not depend on it."""

    def with_files(self, files: Mapping[int, TrackedFile], back: Iterable[TrackedFile] = ()) -> FilePosition:
        """Return the position with these files in their new states, new ones at the end.

        ``back``: those of them that are in the lists, with their state there.
        """
        kept = [files.get(file.number, file) for file in self.files]
        known = {file.number for file in self.files}
        fresh = [file for number, file in files.items() if number not in known]
        every, back = [*kept, *fresh], list(back)
        if back:
            every.sort(key=lambda file: file.number)
        read = self.read.moved((), back) if self.read is not None else None
        seen = max([self.seen, *(file.number + 1 for file in fresh)])
        return msgspec.structs.replace(self, seen=seen, files=tuple(every), read=read)

    def like(self, other: FilePosition) -> FilePosition:
        """Return the position in the form of a later one, so that equal places of both forms are equal."""
        if self.read is not None or other.read is None:
            return self
        return msgspec.structs.replace(self, read=FinishedLists())

    def as_json(self) -> dict[str, Any]:
        """Return the JSON value that the engine stores."""
        value: dict[str, Any] = {"seen": self.seen, "files": [msgspec.structs.asdict(file) for file in self.files]}
        if self.read is not None:
            value["read"] = self.read.as_json()
        if self.copied:
            value["copied"] = {name: [*end] for name, end in self.copied.items()}
        return value

    def place(self) -> dict[str, Any]:
        """Return the position without observed fields, which may differ at the next observation."""
        if self.read is not None:
            return {"seen": self.seen, "sum": self.read.place(self.files)}
        rows = [msgspec.structs.asdict(file) for file in self.files]
        files = [{k: v for k, v in row.items() if k not in _OBSERVED} for row in rows]
        if len(files) <= _NAMED:
            return {"seen": self.seen, "files": files}
        # each consumer's delivery hash covers all of it
        return {"seen": self.seen, "files": hashlib.sha256(msgspec.json.encode(files)).hexdigest()}


def parse_position(value: Any) -> FilePosition:
    """Return the position from its stored JSON value."""
    return msgspec.convert(value, FilePosition)


learn(FilePosition, FinishedLists)
