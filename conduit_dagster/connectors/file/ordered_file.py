"""One ordered file as a destination: positioned writes of staged bytes, which never append and never truncate."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

import msgspec

from conduit_dagster import storage
from conduit_dagster.connectors.file.file_state import TrackedFile
from conduit_dagster.connectors.file.open_file import OpenFile, WritableFile
from conduit_dagster.connectors.file.path_destination import PathLayout
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import ConnectorContext, Delivery, Target

_PIECE = 1 << 20
_CopySome = Callable[[IO[bytes], int, int, int, int], int]
_NO_KERNEL_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF}


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


_ZEROS = re.compile(rb"\0+")


def mend(file: WritableFile, last: Target) -> list[tuple[int, int]]:
    """Fill the range of the last delivery, ``base`` to ``length``, and make it durable; any process may repeat it.

    Returns where lines are missing: from the first empty line of a part, or the torn line before it, to the part's end.

    Bytes beyond the file's end, and zero bytes that a power failure left in incomplete parts, become line ends: a torn
    line ends before the next delivery's first. Bytes outside the range and bytes already written are never touched.
    Raises ``OSError``; bytes filled by then stay, and a repeat continues.
    """
    size, at, incomplete = file.found.size, last["base"], list[tuple[int, int]]()
    for length, sha256 in last["parts"]:
        if digest(file, at, length) != (length, sha256):
            _end_holes(file, at, min(length, size - at))
            incomplete.append((at, length))
        at += length
    _fill(file, size, last["length"])
    os.fsync(file.descriptor)
    begins = ((_first_missing(file, at, length), at + length) for at, length in incomplete)
    return [(begin, end) for begin, end in begins if begin is not None]


def _first_missing(file: OpenFile, at: int, length: int) -> int | None:
    """Return where the first empty line of a part begins, or the line before it if that is torn; None without one."""
    rest, place = b"\n", at
    for piece in file.chunks(at, length):
        data, begin = rest + piece, place - len(rest)
        cut = data.find(b"\n\n")
        if cut >= 0:
            line = data[data.rfind(b"\n", 0, cut) + 1 : cut]
            return begin + cut + 1 if _is_whole(line) else begin + cut - len(line)
        rest, place = data[data.rfind(b"\n") :], place + len(piece)
    return None


def _is_whole(line: bytes) -> bool:
    try:
        msgspec.json.decode(line or b"null")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


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


class _Span(NamedTuple):
    """A range of the file, and the bytes that belong there."""

    at: int
    bytes: int
    sha256: str


_LINE_END = hashlib.sha256(b"\n").hexdigest()
MISSING = "missing"
"""Field of a target: ranges of the last delivery whose lines are missing (at-most-once)."""
_IDENTITY = ("inode", "birth", "marked")
"""Fields that identify a target's file. ``marked`` (only without a birth time): an offset, and the mark up to it."""


_FOR_ONE_RUN: Final = ", with delivery.strategy: at-least-once for that run: exactly-once refuses it"


class OrderedFile(PathLayout):
    """Ordered file: each delivery follows the last one, and a repeat rewrites the same bytes in the same place.

    With at-most-once a delivery is never repeated: it keeps its range, and line ends replace its missing bytes before
    the next one is prepared.
    """

    def __init__(self, path: Path, context: ConnectorContext, adopt: bool) -> None:
        super().__init__(path, context)
        self._adopt = adopt
        self._whole: Target | None = None
        """Target after the last delivery that this instance wrote completely: it needs no mending."""

    def check(self) -> None:
        """Create the folder and the file if missing, and open the file for writing without changing its content."""
        with self._made() as file:
            self._sync_entry(file.found.inode)

    def _made(self) -> WritableFile:
        """Open the file, creating it if it is missing."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return self._open(0, os.O_CREAT)

    def _open(self, after: int, flags: int = 0) -> WritableFile:
        """Open the existing file. Raises ``FatalError`` (``file.changed``) if it is missing."""
        try:
            return WritableFile(self._path, flags)
        except (FileNotFoundError, NotADirectoryError):
            if flags:
                raise
            raise self._changed("was removed", after) from None

    def target(self, previous: Target | None) -> Target:
        """Return the file's identity and base length, stored before publishing (DELIVERY.md, Destinations)."""
        if previous and "length" not in previous:
            previous = None  # it was a folder then
        kept = None if self._adopt else previous
        with self._open(kept["length"]) if kept else self._made() as file:
            self._sync_entry(file.found.inode)
            size, missing = self._end_of(previous, file) if previous else (file.found.size, [])
            gap = 0 if file.is_line_end(size) else 1
            made = {"path": self.place, **self._identity(file, size), "base": size + gap, "gap": gap}
            return {**made, MISSING: missing} if missing else made

    def _identity(self, file: OpenFile, end: int) -> Target:
        """Return the fields that identify the file, if it ends at ``end``."""
        if file.found.birth:
            return {"inode": file.found.inode, "birth": file.found.birth}
        if self._context.strategy == "at-most-once":
            return {
                "inode": file.found.inode
            }  # a frozen owner may still write over line ends that were filled in before it
        return {"inode": file.found.inode, "marked": [end, file.mark(end)]}

    def _end_of(self, previous: Target, file: WritableFile) -> tuple[int, list[tuple[int, int]]]:
        """Return the end of the last delivery, mended if it may be torn, and where lines of it are missing.

        With ``adopt``, the end of a changed file.
        """
        change = _change(previous, file)
        if change is not None:
            if not self._adopt:
                raise self._changed(change, previous["length"])
            return file.found.size, []
        # mended before the next delivery is prepared, so that a file is never shorter than its last delivery's base,
        # and only in that delivery's own range, so that a deposed owner's late mending can't hit later bytes
        if "base" in previous and (file.found.size < previous["length"] or previous != self._whole):
            return previous["length"], mend(file, previous)
        return previous["length"], []

    def _changed(self, what: str, after: int) -> FatalError:
        return FatalError(
            f"{self._path} {what} since this pipeline last wrote to it",
            code="file.changed",
            place=f"{self._path}, after byte {after}",
            fix="move the file back as it was (a copy is another file), or set if-changed: adopt to go on after what "
            f"is there{_FOR_ONE_RUN if self._context.strategy == 'exactly-once' else ''}",
        )

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the delivery's bytes are in the file, regardless of the process that wrote them."""
        file = self._looked()
        if file is None:
            return False
        with file:
            return _is_the_one(delivery.target, file) and all(
                digest(file, span.at, span.bytes) == (span.bytes, span.sha256) for span in _spans(delivery)
            )

    def _looked(self) -> OpenFile | None:
        """Open the file for reading; None if it is missing."""
        try:
            return OpenFile(str(self._path)) if self._path.is_file() else None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def retarget(self, delivery: Delivery) -> Target | None:
        """With ``if-changed: adopt``, return the file's current end if the delivery can't go to its own place."""
        if not self._adopt:
            return None
        file = self._looked()
        if file is not None:
            with file:
                if _is_the_one(delivery.target, file) and _is_ours(delivery, file):
                    return None
        return self.target(None)

    def publish(self, delivery: Delivery) -> Target:
        """Write durably at fixed offsets from the base, so that recovery and zombies write the same bytes."""
        with self._own(delivery) as file:
            if not _is_ours(delivery, file):
                raise self._changed("was changed by another writer", delivery.target["base"])
            write_delivery(file.descriptor, delivery, lambda: reached("mid-publish", self._context.pipeline))
            os.fsync(file.descriptor)
        self._whole = self.expected(delivery)
        return self._whole

    def _own(self, delivery: Delivery) -> WritableFile:
        """Open the file that the delivery was prepared for. Raises ``FatalError`` (``file.changed``) for any other."""
        file = self._open(delivery.target["base"])
        if not _is_the_one(delivery.target, file):
            raise self._changed("was replaced by another file", delivery.target["base"])
        return file

    def settled(self, delivery: Delivery) -> Target:
        """Sync the file and return its target: the process that wrote it may have crashed before that."""
        with self._own(delivery) as file:
            os.fsync(file.descriptor)
        return self.expected(delivery)

    def expected(self, delivery: Delivery) -> Target:
        """Return the target after the delivery; with at-most-once it names the parts, since the file may be shorter."""
        length = delivery.target["base"] + delivery.bytes
        known = {key: delivery.target[key] for key in _IDENTITY if key in delivery.target}
        after: Target = {"path": self.place, **known, "length": length}
        if self._context.strategy == "at-most-once":
            after["base"] = delivery.target["base"] - delivery.target["gap"]
            after["parts"] = [[span.bytes, span.sha256] for span in _spans(delivery)]
        return after


def _is_the_one(target: Target, file: OpenFile) -> bool:
    """Return whether the target was made for this file; its length is checked elsewhere."""
    known = TrackedFile("", 0, target["inode"], birth=target.get("birth", 0))
    # an inode is reused for the next file as soon as its own file is removed
    at, mark = target.get("marked", (0, ""))
    return known.may_be(file.found) and (file.found.size < at or file.mark(at) == mark)


def _change(previous: Target, file: OpenFile) -> str | None:
    """Describe a foreign change to the file, or None. Only a delivery that is never repeated may be cut short."""
    if not _is_the_one(previous, file):
        return "was replaced by another file"
    if not previous.get("base", previous["length"]) <= file.found.size <= previous["length"]:
        return f"is {file.found.size} bytes long, not {previous['length']}"
    return None


def _fits(delivery: Delivery, file: OpenFile) -> bool:
    base, gap = delivery.target["base"], delivery.target["gap"]
    return base - gap <= file.found.size <= base + delivery.bytes


def _is_ours(delivery: Delivery, file: OpenFile) -> bool:
    """Return whether the bytes after the base, if any, begin this delivery; foreign bytes are never lost."""
    if not _fits(delivery, file):
        return False
    at, size = delivery.target["base"], file.found.size
    if delivery.target["gap"] and file.read_at(at - 1, 1) not in (b"", b"\n", b"\0"):
        return False
    for part in delivery.parts:
        length = min(part.bytes, size - at)
        if length <= 0:
            break
        if not _is_beginning(file, at, storage.join(delivery.staging, part.name), length):
            return False
        at += part.bytes
    return True


def _spans(delivery: Delivery) -> Iterator[_Span]:
    """Yield the spans that a delivery writes, in order: a missing line end if needed, then its parts."""
    at = delivery.target["base"]
    if delivery.target["gap"]:
        yield _Span(at - 1, 1, _LINE_END)
    for part in delivery.parts:
        yield _Span(at, part.bytes, part.sha256)
        at += part.bytes


def _is_beginning(file: OpenFile, at: int, staged: str, length: int) -> bool:
    """Return whether the bytes match the staged ones; zero bytes, the holes of a power failure, match as well."""
    pieces = zip(file.chunks(at, length), storage.chunks(staged, 0, length), strict=False)
    return all(a == b or all(x in (0, y) for x, y in zip(a, b, strict=True)) for a, b in pieces)
