"""Positioned writes of staged bytes: never append, never truncate."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import IO

from conduit_dagster import storage
from conduit_dagster.connectors.file.opened import FileChanged, OpenFile
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Delivery

_PIECE = 1 << 20
_CopySome = Callable[[IO[bytes], int, int, int, int], int]
_NO_KERNEL_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF}


class WritableFile(OpenFile):
    """A file open for writing, whose existing content can be read."""

    def __init__(self, path: Path, flags: int = 0) -> None:
        """``flags``: ``os.O_CREAT`` creates it. Raises ``OSError``, and ``FileChanged`` if the path is replaced."""
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o644)
        self._release = weakref.finalize(self, os.close, self.descriptor)
        written = os.fstat(self.descriptor)
        _require_regular(path, written)
        super().__init__(str(path))
        # the checked file is the one written to: while it is open, no other file gets its device and inode
        if (self.found.device, self.found.inode) != (written.st_dev, written.st_ino):
            raise FileChanged

    def __enter__(self) -> WritableFile:
        return self

    def close(self) -> None:
        """Close both descriptors; may be repeated."""
        super().close()
        self._release()


def _require_regular(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise FatalError(
            f"{path} is not a regular file",
            code="file.not_regular",
            place=str(path),
            fix="name a file; devices and pipes can't keep an order across restarts",
        )


def digest(file: OpenFile, start: int, length: int) -> tuple[int, str]:
    """Return length and SHA-256 of a range, shorter than ``length`` only at the end of the file."""
    total, sha = 0, hashlib.sha256()
    for data in file.chunks(start, length):
        total += len(data)
        sha.update(data)
    return total, sha.hexdigest()


def write_delivery(into: int, delivery: Delivery, midway: Callable[[], None]) -> None:
    """Write the delivery at its base, front to back; ``midway`` is called once, when half of the bytes are written.

    Raises ``OSError``, and ``FatalError`` if a staged part is shorter than in its ledger.
    """
    base, half, done = delivery.target["base"], delivery.bytes // 2, 0
    if delivery.target["gap"]:
        os.pwrite(into, b"\n", base - 1)  # content from before this pipeline lacks its last line end
    for part in delivery.parts:
        has_half = done <= half < done + part.bytes
        cut = half - done if has_half else 0
        url = storage.join(delivery.staging, part.name)
        with storage.open_read(url) as staged:
            copy_some = _copy_local if storage.is_local(url) else _copy_read
            _copy(copy_some, staged, 0, into, base + done, cut)
            if has_half:
                midway()
            _copy(copy_some, staged, cut, into, base + done + cut, part.bytes - cut)
        done += part.bytes


def _copy(some: _CopySome, source: IO[bytes], start: int, into: int, at: int, length: int) -> None:
    """Copy ``length`` bytes from ``start`` of ``source`` to ``at``."""
    done = 0
    while done < length:
        copied = some(source, start + done, into, at + done, length - done)
        if copied == 0:
            raise FatalError(
                f"a staged part is {length - done} bytes shorter than its ledger says",
                code="delivery.staging_damaged",
                fix="check the disk that holds the staging folder; run again to have the step staged anew",
            )
        done += copied


def _copy_local(source: IO[bytes], start: int, into: int, at: int, length: int) -> int:
    """Copy at most ``length`` bytes, inside the kernel if possible; return how many."""
    try:
        return os.copy_file_range(source.fileno(), into, length, start, at)
    except OSError as error:
        if error.errno not in _NO_KERNEL_COPY:
            raise
    return os.pwrite(into, os.pread(source.fileno(), min(_PIECE, length), start), at)


def _copy_read(source: IO[bytes], start: int, into: int, at: int, length: int) -> int:
    """Copy at most ``length`` bytes of a file without a descriptor, such as an object; return how many."""
    source.seek(start)
    return os.pwrite(into, source.read(min(_PIECE, length)), at)
