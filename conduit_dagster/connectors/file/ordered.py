"""One ordered file as a destination."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from conduit_dagster.connectors.base import Delivery, Target
from conduit_dagster.recovery.errors import FatalError, from_os_error
from conduit_dagster.state import storage

_PIECE = 1 << 20
_NO_KERNEL_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF}


class OrderedFile:
    """Appends each delivery after the last, so that a repeat rewrites the same bytes in the same place."""

    def __init__(self, path: Path, adopt: bool) -> None:
        self._path = path
        self._adopt = adopt

    def check(self) -> None:
        """Makes the folder and tries to open the file for writing, changing nothing of it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
        except OSError as error:
            raise from_os_error(error, f"can't write {self._path}") from error
        try:
            self._require_regular(os.fstat(descriptor))
        finally:
            os.close(descriptor)
        storage.sync(str(self._path.parent))

    def _require_regular(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise FatalError(
                f"{self._path} is not a regular file",
                code="file.not_regular",
                place=str(self._path),
                fix="name a file; devices and pipes can't keep an order across restarts",
            )

    def target(self, previous: Target | None) -> Target:
        """Inode and base length, stored before anything is published (DELIVERY.md, Destinations)."""
        if previous and not self._path.exists() and not self._adopt:
            raise self._changed("was removed", previous["length"])
        self.check()
        found = self._path.stat()
        if previous and not self._adopt and found.st_ino != previous["inode"]:
            raise self._changed("was replaced by another file", previous["length"])
        if previous and not self._adopt and found.st_size != previous["length"]:
            raise self._changed(f"is {found.st_size} bytes long, not {previous['length']}", previous["length"])
        gap = 0 if _ends_a_line(self._path, found.st_size) else 1
        return {"path": str(self._path), "inode": found.st_ino, "base": found.st_size + gap, "gap": gap}

    def _changed(self, what: str, after: int) -> FatalError:
        return FatalError(
            f"{self._path} {what} since this pipeline last wrote to it",
            code="file.changed",
            place=f"{self._path}, after byte {after}",
            fix="put the file back as it was, or set if-changed: adopt to go on after what is there",
        )

    def holds(self, delivery: Delivery) -> bool:
        """Whether the bytes are there, whoever wrote them."""
        if not self._is_same(delivery):
            return False
        at = delivery.target["base"]
        for part in delivery.parts:
            if storage.digest(str(self._path), at, part.bytes) != (part.bytes, part.sha256):
                return False
            at += part.bytes
        return True

    def _is_same(self, delivery: Delivery) -> bool:
        return self._path.exists() and self._path.stat().st_ino == delivery.target["inode"]

    def retarget(self, delivery: Delivery) -> Target | None:
        """With ``if-changed: adopt``, the end of what is there now, where the delivery can't go to its own place."""
        if not self._adopt or (self._is_same(delivery) and self._fits(delivery)):
            return None
        return self.target(None)

    def publish(self, delivery: Delivery) -> Target:
        """Positioned writes at the base: never append, never truncate, so recovery and zombies write the same bytes."""
        try:
            if not self._is_same(delivery) or not self._is_ours(delivery):
                raise self._changed("was changed by somebody else", delivery.target["base"])
            descriptor = os.open(self._path, os.O_WRONLY)
            try:
                _write(descriptor, delivery)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise from_os_error(error, f"can't write {self._path}") from error
        return self.settled(delivery)

    def settled(self, delivery: Delivery) -> Target:
        """The file after the delivery, synced: whoever wrote it may have died before that."""
        storage.sync(str(self._path))
        length = delivery.target["base"] + delivery.bytes
        return {"path": str(self._path), "inode": delivery.target["inode"], "length": length}

    def _fits(self, delivery: Delivery) -> bool:
        base, gap = delivery.target["base"], delivery.target["gap"]
        return base - gap <= self._path.stat().st_size <= base + delivery.bytes

    def _is_ours(self, delivery: Delivery) -> bool:
        """What lies behind the base is a beginning of this delivery, or nothing yet; foreign bytes are never lost."""
        if not self._fits(delivery):
            return False
        at, size = delivery.target["base"], self._path.stat().st_size
        for part in delivery.parts:
            length = min(part.bytes, size - at)
            if length <= 0:
                break
            staged = storage.join(delivery.staging, part.name)
            if not _is_beginning(str(self._path), at, staged, length):
                return False
            at += part.bytes
        return True


def _ends_a_line(path: Path, size: int) -> bool:
    return size == 0 or b"".join(storage.chunks(str(path), size - 1, 1)) == b"\n"


def _is_beginning(path: str, at: int, staged: str, length: int) -> bool:
    """Whether the bytes are the staged ones; where a power cut left a hole, they may be zero as well."""
    pieces = zip(storage.chunks(path, at, length), storage.chunks(staged, 0, length), strict=False)
    return all(a == b or all(x in (0, y) for x, y in zip(a, b, strict=True)) for a, b in pieces)


def _write(descriptor: int, delivery: Delivery) -> None:
    base = delivery.target["base"]
    if delivery.target["gap"]:
        os.pwrite(descriptor, b"\n", base - 1)  # what was there before this pipeline did not end its last line
    at = base
    for part in delivery.parts:
        with storage.open_read(storage.join(delivery.staging, part.name)) as staged:
            _copy(staged.fileno(), descriptor, at, part.bytes)
        at += part.bytes


def _copy(source: int, into: int, at: int, length: int) -> None:
    """Copies ``length`` bytes from the beginning of ``source`` to ``at``, inside the kernel where that works."""
    done = 0
    while done < length:
        try:
            copied = os.copy_file_range(source, into, length - done, done, at + done)
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                raise
            copied = os.pwrite(into, os.pread(source, min(_PIECE, length - done), done), at + done)
        if copied == 0:
            raise FatalError(
                f"a staged part is {length - done} bytes shorter than its ledger says",
                code="delivery.staging_damaged",
                fix="look at the disk that holds the staging folder; run again to have the step staged anew",
            )
        done += copied
