"""The files that a path means now, in reading order; and which of them a source has read, how far: its position."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from conduit_dagster import storage
from conduit_dagster.connectors.file import birth
from conduit_dagster.connectors.file.settings import GLOB
from conduit_dagster.learn import learn
from conduit_dagster.recovery.errors import FatalError

_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")


class Found(NamedTuple):
    """A file as it was at one look: by its path, or by an open descriptor.

    A look by its path is a hint only: another file may have the path by the time it is opened.
    """

    url: str
    name: str
    inode: int
    size: int
    modified: int
    changed: int = 0
    """When its inode last changed, in nanoseconds: no tool sets that back."""
    birth: int = 0
    """When it was made, in nanoseconds; 0 where the file system does not tell."""
    device: int = 0
    """Tells apart equal inodes of two disks. Not kept: it may change when a disk is mounted again."""

    @property
    def ident(self) -> str:
        """What tells files apart within one process: device, inode and birth where there are any, else the name."""
        return f"{self.device}:{self.inode}:{self.birth}" if self.inode else self.name


def found_of(url: str, name: str, stat: os.stat_result, made: int) -> Found:
    """The file that a ``stat`` tells of; ``made`` is its birth."""
    times = stat.st_mtime_ns, stat.st_ctime_ns
    return Found(url, name, stat.st_ino, stat.st_size, *times, made, stat.st_dev)


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
    return found_of(url, name, stat, birth.birth_of(str(path)))


def is_many(path: str, root: str) -> bool:
    """Whether the path, as written, means a folder or a glob rather than one file."""
    local = storage.local_path(path)
    return bool(GLOB & set(path)) or path.endswith("/") or (local is not None and Path(root, local).is_dir())


def list_many(path: str, root: str) -> list[Found]:
    """The files of a folder or glob by name; hidden ones and ``_`` ones are left out, as Spark does.

    A file under two names, such as a link to the newest one, is listed once.
    """
    if "://" in path and not path.startswith("file://"):
        raise FatalError(
            f"a folder or glob of files must be local, not {path}",
            code="file.not_local",
            fix="name one file, or mount the folder",
        )
    written = path.removeprefix("file://")
    pattern = written if GLOB & set(written) else os.path.join(glob.escape(written), "*")  # noqa: PTH118
    names = sorted(glob.glob(pattern, root_dir=root))  # noqa: PTH207  # Path.glob takes no absolute pattern
    return _once(_files(Path(root, name) for name in names))


def _files(paths: Iterable[Path]) -> Iterator[Found]:
    for path in paths:
        if not path.name.startswith((".", "_")) and not path.is_dir():
            found = look(str(path), _checked(path.name))
            if found is not None:
                yield found


def _checked(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise FatalError(
            f"the file name {name.encode('utf-8', 'backslashreplace').decode()} is no UTF-8",
            code="file.name_invalid",
            fix="rename the file, or choose a glob that leaves it out",
        ) from None
    return name


def list_family(path: str) -> list[Found]:
    """What one path was rotated to, from the oldest change on (``path.*`` and ``path-*``, not compressed), then itself.

    The path is looked at first: a file that is renamed in between is found under its new name, and nothing of it is
    missed.
    """
    local = storage.local_path(path)
    current = look(path, path.rsplit("/", 1)[-1])
    itself = [current] if current is not None else []
    if local is None or not local.parent.is_dir():
        return itself
    siblings = (p for p in local.parent.iterdir() if _is_rotated(p.name, local.name))
    rotated = sorted(_files(siblings), key=lambda found: (found.modified, found.name))
    return _once([*rotated, *itself])


def _is_rotated(name: str, base: str) -> bool:
    return name.startswith((f"{base}.", f"{base}-")) and not name.endswith(_PACKED)


def _once(files: Iterable[Found]) -> list[Found]:
    kept: dict[str, Found] = {}
    for found in files:
        kept.setdefault(found.ident, found)
    return list(kept.values())


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
