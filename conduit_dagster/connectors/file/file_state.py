"""The state of a file: as found on the disk, with its birth time, and as recorded once part of it is read."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from conduit_dagster.msgspec_warmup import learn


class FoundFile(NamedTuple):
    """State of a file as observed once, by its path or by an open descriptor.

    An observation by path is only a hint: the path may refer to another file by the time it is opened.
    """

    url: str
    name: str
    inode: int
    size: int
    modified: int
    changed: int = 0
    """Last change of its inode, in nanoseconds: no tool can reset it."""
    birth: int = 0
    """Birth time in nanoseconds; 0 if the file system does not provide it."""
    device: int = 0
    """Device number, which distinguishes equal inodes of two disks. Not stored: a remount may change it."""
    unpacked: bool = False
    """Whether it is a compressed file whose content is read: ``size`` is that of the content."""

    @property
    def ident(self) -> str:
        """Identity of the file within one process: device, inode and birth if available, otherwise the name."""
        return f"{self.device}:{self.inode}:{self.birth}" if self.inode else self.name


def found_of(url: str, name: str, state: os.stat_result, file: int | str) -> FoundFile:
    """Return the file described by the ``stat`` result of an open descriptor or a path."""
    return _found(url, name, state, birth_of(file))


def found_at(path: str, name: str, state: os.stat_result) -> FoundFile:
    """Return the same for a path that is examined again and again: its birth time is cached."""
    return _found(path, name, state, _cached_birth(path, state))


def _found(url: str, name: str, state: os.stat_result, birth: int) -> FoundFile:
    times = state.st_mtime_ns, state.st_ctime_ns
    return FoundFile(url, name, state.st_ino, state.st_size, *times, birth, state.st_dev)


class Quiet:
    """Time since a file last changed. Tracks the files whose own modification time is no evidence."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int, float]] = {}

    def seconds(self, found: FoundFile) -> float:
        """Return the seconds since the file's last change.

        For a remote file, or one with a time in the future, counted from when it was first seen in its current state.
        """
        age = time.time_ns() - found.modified
        if found.modified and age >= 0:
            return age / 1e9
        known = self._seen.get(found.ident)
        if known is None or known[:2] != (found.size, found.modified):
            known = self._seen[found.ident] = (found.size, found.modified, time.monotonic())
        return time.monotonic() - known[2]


class TrackedFile(msgspec.Struct, frozen=True):
    """One file, and how much of it lies before the position.

    A local file is identified by its inode and birth, so that a rename does not hide it, and another file that reuses
    its inode is not mistaken for it. ``mark`` is a digest of bytes before ``offset``, so that content written after a
    truncation is not mistaken for it either. A field missing from a stored position was unknown to the version that
    stored it.
    """

    name: str
    number: int
    """Index of the file in the source, from 0."""
    inode: int
    offset: int = 0
    line: int = 0
    mark: str = ""
    unended: bool = False
    """Whether the last line was read without its line end, which may follow."""
    size: int = 0
    """Size at the last observation: the bytes from ``offset`` up to it existed and were not read yet."""
    modified: int = 0
    """Modification time at the last observation, in nanoseconds."""
    changed: int = 0
    """Last change of its inode at the last observation, in nanoseconds."""
    birth: int = 0
    """Birth time in nanoseconds; 0 if the file system does not provide it."""
    ahead: int = 0
    """End of the last complete line at that observation, if it is known to lie after ``offset``."""
    ahead_mark: str = ""
    """Mark of the file up to ``ahead``: lines that existed and were not read."""

    @property
    def slot(self) -> int:
        """Key of the file in lists of finished ones: its inode; 0 for a row that hides an earlier one."""
        return self.inode

    @property
    def placed(self) -> tuple[Any, ...]:
        """Fields that go into a place. Never change them: a stored sum can't be recomputed."""
        return self.name, self.number, self.inode, self.offset, self.line, self.mark, self.unended

    def may_be(self, found: FoundFile) -> bool:
        """Return whether a found file can be this one, judging by inode and birth, not by content.

        Without a birth time, the inode must not have changed earlier than it was seen to. Its modification time proves
        nothing: ``cp -p`` and ``rsync --times`` set it back once they have written all.
        """
        if not self.inode or not found.inode:
            return self.inode == found.inode and self.name == found.name
        if self.inode != found.inode:
            return False
        # an inode is reused for the next file as soon as its own file is removed
        if self.birth and found.birth:
            return self.birth == found.birth
        return found.changed >= self.changed

    def at_first(self, found: FoundFile) -> TrackedFile:
        """Return a new file with its first observation, before anything of it is read."""
        return msgspec.structs.replace(self, birth=found.birth, modified=found.modified, changed=found.changed)

    def at(self, found: FoundFile) -> TrackedFile:
        """Return the file with the identity of the found one, which is the file itself or a copy of it."""
        if self.may_be(found):
            return self
        identity = {"inode": found.inode, "birth": found.birth, "modified": found.modified, "changed": found.changed}
        return msgspec.structs.replace(self, **identity)


def parse_tracked(value: Any) -> TrackedFile:
    """Return the file from a split's start or a boundary."""
    return msgspec.convert(value, TrackedFile)


learn(TrackedFile)


_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
_BIRTH: Final = 0x800
_SIZE: Final = 256
_MASK: Final = struct.Struct("=I")
_TIME: Final = struct.Struct("=qI")
_TIME_AT: Final = 80
"""Offset of the birth time in ``struct statx``, whose layout is the same on every architecture."""


def birth_of(file: int | str) -> int:
    """Return the file's birth time in nanoseconds; 0 if the C library or the file system does not provide it.

    Takes an open descriptor or a path. Only the result for a descriptor is certain to belong to the bytes read from it.
    Never raises.
    """
    return _statx_birth(file) or _stat_birth(file)


_known: dict[tuple[int, int, int], int] = {}
_MOST_KNOWN: Final = 500_000


def _cached_birth(path: str, state: os.stat_result) -> int:
    """Return the birth time of the file that ``state`` was read from, like :func:`birth_of`.

    Cached: a file's birth never changes, and no other file has the same disk, inode and change time.
    """
    key = state.st_dev, state.st_ino, state.st_ctime_ns
    if (born := _known.get(key)) is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        born = _known[key] = birth_of(path)
    return born


def _statx_birth(file: int | str) -> int:
    statx = _statx()
    if statx is None:
        return 0
    buffer = ctypes.create_string_buffer(_SIZE)
    if isinstance(file, int):
        failed = statx(file, b"", _AT_EMPTY_PATH, _BIRTH, buffer)
    else:
        failed = statx(_AT_FDCWD, os.fsencode(file), 0, _BIRTH, buffer)
    if failed or not _MASK.unpack_from(buffer)[0] & _BIRTH:
        return 0
    seconds, nanoseconds = _TIME.unpack_from(buffer, _TIME_AT)
    return seconds * 1_000_000_000 + nanoseconds


@cache
def _statx() -> Callable[..., int] | None:
    """Return the C library's ``statx`` (glibc 2.28, musl 1.2.4); None if it has none."""
    try:
        statx: Any = ctypes.CDLL(None).statx
    except (OSError, AttributeError):
        return None
    statx.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p)
    statx.restype = ctypes.c_int
    return statx


def _stat_birth(file: int | str) -> int:
    """Return the birth time as macOS and the BSDs provide it."""
    try:
        return int(getattr(os.stat(file), "st_birthtime", 0) * 1_000_000_000)  # noqa: PTH116  # a descriptor is no path
    except OSError:
        return 0
