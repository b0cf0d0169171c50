"""Birth time of a file, which together with its inode distinguishes it from every other file on its disk."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final

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


def known_birth(path: str, state: os.stat_result) -> int:
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
