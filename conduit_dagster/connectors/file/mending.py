"""At-most-once in one ordered file: line ends in the place of what was never written."""

from __future__ import annotations

import os
import re
from pathlib import Path

from conduit_dagster.connectors.base import Target
from conduit_dagster.state import storage

_PIECE = 1 << 20
_ZEROS = re.compile(rb"\0+")


def mend(path: Path, last: Target) -> None:
    """Fills the range of the last delivery, ``base`` to ``length``, and makes it durable; may be repeated by anybody.

    Bytes behind the file's end, and zero bytes that a power cut left in parts that are not whole, become line ends: a
    torn line ends before the next delivery's first. Nothing outside the range is touched, and nothing that is there.
    Raises ``OSError``; what is filled by then stays, and a repeat goes on.
    """
    descriptor = os.open(path, os.O_WRONLY)
    try:
        size, at = os.fstat(descriptor).st_size, last["base"]
        for length, sha256 in last["parts"]:
            if storage.digest(str(path), at, length) != (length, sha256):
                _end_holes(path, descriptor, at, min(length, size - at))
            at += length
        _fill(descriptor, size, last["length"])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _end_holes(path: Path, descriptor: int, at: int, length: int) -> None:
    if length <= 0:
        return
    for piece in storage.chunks(str(path), at, length):
        for hole in _ZEROS.finditer(piece):
            _fill(descriptor, at + hole.start(), at + hole.end())
        at += len(piece)


def _fill(descriptor: int, at: int, end: int) -> None:
    while at < end:
        at += os.pwrite(descriptor, b"\n" * min(_PIECE, end - at), at)
