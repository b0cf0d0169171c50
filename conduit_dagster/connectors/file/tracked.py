"""Which files a file source has seen and how far it has read each: its position."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from conduit_dagster.learn import learn
from conduit_dagster.state import storage

_MARK = 256
_OBSERVED = ("size", "modified")


class Tracked(msgspec.Struct, frozen=True):
    """One file, and how much of it lies before the position.

    A local file is known by its inode, so that a rename does not hide it; ``mark`` is a digest of bytes before
    ``offset``, so that another file on the same inode is not taken for it.
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

    @property
    def ident(self) -> str:
        """What tells files apart: the inode where there is one, else the name."""
        return str(self.inode) if self.inode else self.name


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


def mark_of(url: str, offset: int) -> str:
    """A digest of the first and the last bytes before ``offset``; empty at the beginning of a file."""
    if offset == 0:
        return ""
    head = b"".join(storage.chunks(url, 0, min(_MARK, offset)))
    tail = b"".join(storage.chunks(url, max(0, offset - _MARK), min(_MARK, offset)))
    return hashlib.sha256(head + tail).hexdigest()[:16]


learn(FilePosition, Tracked)
