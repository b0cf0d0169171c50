"""Which files a file source has seen and how far it has read each: its position."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from conduit_dagster.connectors.file.settings import GLOB
from conduit_dagster.state import storage

_MARK = 256


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
    size: int = 0
    """Its size when it was last looked at: what lies between ``offset`` and it was there and not read yet."""


class FilePosition(msgspec.Struct, frozen=True):
    """A file source's position: every tracked file that still matters, in reading order."""

    seen: int = 0
    files: tuple[Tracked, ...] = ()

    def of(self, number: int) -> Tracked | None:
        """The tracked file with this number."""
        return next((file for file in self.files if file.number == number), None)

    def moved(self, file: Tracked) -> FilePosition:
        """The position with ``file`` in its new state."""
        if self.of(file.number) is None:
            return FilePosition(max(self.seen, file.number + 1), (*self.files, file))
        return FilePosition(self.seen, tuple(file if f.number == file.number else f for f in self.files))

    def as_json(self) -> dict[str, object]:
        """The JSON value that the engine stores."""
        return {"seen": self.seen, "files": [msgspec.structs.asdict(file) for file in self.files]}


def parse_position(value: object) -> FilePosition:
    """The position behind a stored JSON value."""
    return msgspec.convert(value, FilePosition)


class Found(NamedTuple):
    """A file as it is now."""

    url: str
    name: str
    inode: int
    size: int
    modified: int


def look(url: str, name: str) -> Found | None:
    """The file as it is now, or None where there is none. Raises ``OSError`` where it can't be looked at."""
    path = storage.local_path(url)
    if path is None:
        size = storage.size(url)
        return None if size is None else Found(url, name, 0, size, 0)
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return Found(url, name, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def mark_of(url: str, offset: int) -> str:
    """A digest of the first and the last bytes before ``offset``; empty at the beginning of a file."""
    if offset == 0:
        return ""
    head = b"".join(storage.chunks(url, 0, min(_MARK, offset)))
    tail = b"".join(storage.chunks(url, max(0, offset - _MARK), min(_MARK, offset)))
    return hashlib.sha256(head + tail).hexdigest()[:16]


def is_many(path: str) -> bool:
    """Whether the path means a folder or a glob rather than one file."""
    local = storage.local_path(path)
    return bool(GLOB & set(path)) or path.endswith("/") or (local is not None and local.is_dir())


def list_files(path: str) -> list[Found]:
    """The files that the path means now, in reading order.

    One file: what it was rotated to (``path.*``, not compressed) from the oldest change on, then the file itself.
    Folder or glob: by name; hidden files and ``_`` files are left out, as Spark does.
    """
    return list(_many(path) if is_many(path) else _rotation(path))


def _many(path: str) -> Iterator[Found]:
    local = storage.local_path(path)
    if local is None:
        raise ValueError(f"a folder or glob of files must be local: {path}")
    pattern = str(local) if GLOB & set(path) else str(local / "*")
    for name in sorted(glob.glob(pattern)):  # noqa: PTH207  # Path.glob can't take an absolute pattern
        plain = Path(name).name
        found = None if plain.startswith((".", "_")) or Path(name).is_dir() else look(name, plain)
        if found:
            yield found


def _rotation(path: str) -> Iterator[Found]:
    local = storage.local_path(path)
    if local is not None and local.parent.is_dir():
        siblings = [p for p in local.parent.iterdir() if _is_rotated(p.name, local.name) and p.is_file()]
        found = [f for p in siblings if (f := look(str(p), p.name))]
        yield from sorted(found, key=lambda f: (f.modified, f.name))
    current = look(path, local.name if local is not None else path.rsplit("/", 1)[-1])
    if current:
        yield current


def _is_rotated(name: str, base: str) -> bool:
    return name.startswith((f"{base}.", f"{base}-")) and not name.endswith((".gz", ".bz2", ".xz", ".zst", ".zip"))
