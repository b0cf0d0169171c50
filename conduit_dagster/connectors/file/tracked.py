"""Which files a file source has seen and how far it has read each: its position."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from conduit_dagster.connectors.file.listing import Found
from conduit_dagster.learn import learn

MARK = 256
"""How many bytes at either end a mark is made of."""
_OBSERVED = ("size", "modified", "changed", "birth", "ahead", "ahead_mark")
"""What one look may find and another one not: no part of a place, which goes into the delivery hash."""


class Tracked(msgspec.Struct, frozen=True):
    """One file, and how much of it lies before the position.

    A local file is known by its inode and birth, so that a rename does not hide it and another file that gets its
    inode is not taken for it; ``mark`` is a digest of bytes before ``offset``, so that neither is what was written into
    it after it had been cut off. A field that is not in a stored position was not known to the version that stored it.
    """

    name: str
    number: int
    """The how-manieth file of the source it is, from 0."""
    inode: int
    offset: int = 0
    line: int = 0
    mark: str = ""
    unended: bool = False
    """Whether the last line was read without its end, which may follow."""
    size: int = 0
    """Its size when it was last looked at: what lies between ``offset`` and it was there and not read yet."""
    modified: int = 0
    """When it was last changed, as of then, in nanoseconds."""
    changed: int = 0
    """When its inode was last changed, as of then, in nanoseconds."""
    birth: int = 0
    """When it was made, in nanoseconds; 0 where the file system does not tell."""
    ahead: int = 0
    """The end of the last whole line that was there at that look, where it is known to lie behind ``offset``."""
    ahead_mark: str = ""
    """The mark of the file up to ``ahead``: lines that were there and not read."""

    @property
    def slot(self) -> str:
        """Where to look for it among the files there are: its inode where it has one, else its name."""
        return str(self.inode) if self.inode else self.name

    def may_be(self, found: Found) -> bool:
        """Whether a file that was found is this one, as far as its inode, birth and times tell; not what is in it."""
        if not self.inode or not found.inode:
            return self.inode == found.inode and self.name == found.name
        if self.inode != found.inode:
            return False
        # an inode alone is given to the next file as soon as its own is removed
        if self.birth and found.birth:
            return self.birth == found.birth
        return found.modified >= self.modified and found.changed >= self.changed


class FilePosition(msgspec.Struct, frozen=True):
    """A file source's position: every tracked file that still matters, in reading order."""

    seen: int = 0
    files: tuple[Tracked, ...] = ()

    def with_files(self, files: dict[int, Tracked]) -> FilePosition:
        """The position with these files in their new states, new ones at the end."""
        kept = [files.get(file.number, file) for file in self.files]
        known = {file.number for file in self.files}
        fresh = [file for number, file in files.items() if number not in known]
        return FilePosition(max([self.seen, *(file.number + 1 for file in fresh)]), (*kept, *fresh))

    def as_json(self) -> dict[str, Any]:
        """The JSON value that the engine stores."""
        return {"seen": self.seen, "files": [msgspec.structs.asdict(file) for file in self.files]}

    def place(self) -> dict[str, Any]:
        """Without what was merely observed, which another look may find otherwise."""
        rows = [msgspec.structs.asdict(file) for file in self.files]
        return {"seen": self.seen, "files": [{k: v for k, v in r.items() if k not in _OBSERVED} for r in rows]}


def parse_position(value: Any) -> FilePosition:
    """The position behind a stored JSON value."""
    return msgspec.convert(value, FilePosition)


def parse_tracked(value: Any) -> Tracked:
    """The file behind a split's start or a boundary."""
    return msgspec.convert(value, Tracked)


def mark_of(head: bytes, tail: bytes) -> str:
    """A digest of a file's first bytes and of those before an offset."""
    return hashlib.sha256(head + tail).hexdigest()[:16]


learn(FilePosition, Tracked)
