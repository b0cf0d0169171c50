"""At-most-once in one ordered file: line ends in the place of what was never written."""

from __future__ import annotations

import os
import re

from conduit_dagster.connectors.file.positioned import WritableFile, digest
from conduit_dagster.sdk import Target

_PIECE = 1 << 20
_ZEROS = re.compile(rb"\0+")


def mend(file: WritableFile, last: Target) -> None:
    """Fills the range of the last delivery, ``base`` to ``length``, and makes it durable; may be repeated by anybody.

    Bytes behind the file's end, and zero bytes that a power cut left in parts that are not whole, become line ends: a
    torn line ends before the next delivery's first. Nothing outside the range is touched, and nothing that is there.
    Raises ``OSError``; what is filled by then stays, and a repeat goes on.
    """
    size, at = file.found.size, last["base"]
    for length, sha256 in last["parts"]:
        if digest(file, at, length) != (length, sha256):
            _end_holes(file, at, min(length, size - at))
        at += length
    _fill(file, size, last["length"])
    os.fsync(file.descriptor)


def _end_holes(file: WritableFile, at: int, length: int) -> None:
    if length <= 0:
        return
    for piece in file.chunks(at, length):
        for hole in _ZEROS.finditer(piece):
            _fill(file, at + hole.start(), at + hole.end())
        at += len(piece)


def _fill(file: WritableFile, at: int, end: int) -> None:
    while at < end:
        at += os.pwrite(file.descriptor, b"\n" * min(_PIECE, end - at), at)
