"""A file source's position: how far each file is read, and which lists hold the files that were read completely."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from conduit_dagster.connectors.file.listing import TrackedFile
from conduit_dagster.msgspec_warmup import learn

_OBSERVED = ("size", "modified", "changed", "birth", "ahead", "ahead_mark")
"""Fields that may differ between observations: not part of a place, which goes into the delivery hash."""
_NAMED = 8
"""Most files that a place names one by one; more of them are digested."""
_MODULUS = 1 << 256


class FinishedLists(msgspec.Struct, frozen=True):
    """Files that are no longer in the position itself."""

    lists: tuple[tuple[str, int], ...] = ()
    """Digest and number of rows of each list, oldest first. A later row of a file replaces an earlier one."""
    sum: str = ""
    """Sum, modulo 2^256, of the digests of all these files, and of files that are gone: it depends on how far each one
    was read, and not on steps, lists, or what was dropped."""

    def moved(self, left: Iterable[TrackedFile], back: Iterable[TrackedFile]) -> FinishedLists:
        """Return it with the files that left the position, and without those that came back to it."""
        total = int(self.sum or "0", 16) + _total(left) - _total(back)
        return msgspec.structs.replace(self, sum=f"{total % _MODULUS:064x}")

    def place(self, files: Iterable[TrackedFile]) -> str:
        """Return the digest of these files and of all that left the position."""
        return self.moved(files, ()).sum


class FilePosition(msgspec.Struct, frozen=True):
    """Position of a file source: the tracked files that still matter, in reading order."""

    seen: int = 0
    files: tuple[TrackedFile, ...] = ()
    read: FinishedLists | None = None
    """None: every file is in ``files``."""

    def with_files(self, files: Mapping[int, TrackedFile], back: Iterable[TrackedFile] = ()) -> FilePosition:
        """Return the position with these files in their new states, new ones at the end.

        ``back``: those of them that are in the lists, as they are there.
        """
        kept = [files.get(file.number, file) for file in self.files]
        known = {file.number for file in self.files}
        fresh = [file for number, file in files.items() if number not in known]
        every, back = [*kept, *fresh], list(back)
        if back:
            every.sort(key=lambda file: file.number)
        read = self.read.moved((), back) if self.read is not None else None
        return FilePosition(max([self.seen, *(file.number + 1 for file in fresh)]), tuple(every), read)

    def like(self, other: FilePosition) -> FilePosition:
        """Return the position in the form of a later one, so that equal places of both forms look alike."""
        if self.read is not None or other.read is None:
            return self
        return msgspec.structs.replace(self, read=FinishedLists())

    def as_json(self) -> dict[str, Any]:
        """Return the JSON value that the engine stores."""
        value: dict[str, Any] = {"seen": self.seen, "files": [msgspec.structs.asdict(file) for file in self.files]}
        if self.read is not None:
            value["read"] = {"lists": [[*one] for one in self.read.lists], "sum": self.read.sum}
        return value

    def place(self) -> dict[str, Any]:
        """Return the position without merely observed fields, which may differ at another observation."""
        if self.read is not None:
            return {"seen": self.seen, "sum": self.read.place(self.files)}
        rows = [msgspec.structs.asdict(file) for file in self.files]
        files = [{k: v for k, v in row.items() if k not in _OBSERVED} for row in rows]
        if len(files) <= _NAMED:
            return {"seen": self.seen, "files": files}
        # each consumer's delivery hash covers all of it
        return {"seen": self.seen, "files": hashlib.sha256(msgspec.json.encode(files)).hexdigest()}


def _total(files: Iterable[TrackedFile]) -> int:
    # exactly these fields, for ever: a stored sum can't be computed again
    rows = ((f.name, f.number, f.inode, f.offset, f.line, f.mark, f.unended) for f in files)
    return sum(int.from_bytes(hashlib.sha256(msgspec.json.encode(row)).digest()) for row in rows)


def parse_position(value: Any) -> FilePosition:
    """Return the position from its stored JSON value."""
    return msgspec.convert(value, FilePosition)


learn(FilePosition, FinishedLists)
