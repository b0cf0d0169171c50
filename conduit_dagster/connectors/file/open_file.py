"""Files read through one open descriptor, so that bytes, size, times and marks are consistent; and compressed files."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import re
import shutil
import stat
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, Self

from conduit_dagster import storage
from conduit_dagster.connectors.file.file_state import FoundFile, TrackedFile, found_of
from conduit_dagster.recovery.errors import FatalError, from_os_error

_SUFFIXES: Final = (".gz", ".bz2", ".xz", ".zst", ".zip", ".lz4", ".Z", ".7z")
_OPENERS: Final[Mapping[bytes, Callable[[IO[bytes]], Any]]] = {
    b"\x1f\x8b\x08": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_BEGINS: Final = re.compile(
    rb"\x1f\x8b\x08|BZh[1-9](1AY&SY|\x17rE8P\x90)|\xfd7zXZ\x00|\x28\xb5\x2f\xfd|PK\x03\x04|\x04\x22\x4d\x18|\x1f\x9d|7z\xbc\xaf\x27\x1c"
)
"""First bytes of gzip, bzip2, xz, Zstandard, zip, lz4, compress and 7z."""
_LONGEST: Final = 16
_CHUNK: Final = 1 << 20


def is_packed(name: str) -> bool:
    """Return whether the name is that of a compressed file."""
    return name.endswith(_SUFFIXES)


def require_plain(head: bytes, url: str) -> None:
    """Raise ``FatalError`` (``file.compressed``) if a file begins like a compressed one."""
    if _BEGINS.match(head):
        raise FatalError(
            f"{url} is compressed: its bytes are no lines",
            code="file.compressed",
            place=url,
            fix="decompress it; or leave such files out of a folder or glob with the setting exclude, such as *.gz",
        )


def _unpacked(descriptor: int, url: str) -> int:
    """Return a descriptor of a temporary file with the content of a compressed file, and close the given one.

    Returns the given one if the file is not compressed. Raises ``FatalError`` (``file.compressed``) if the format is
    not supported or the file is damaged, and ``OSError``.
    """
    head = os.pread(descriptor, _LONGEST, 0)
    if not _BEGINS.match(head):
        return descriptor
    opener = next((opener for begin, opener in _OPENERS.items() if head.startswith(begin)), None)
    with os.fdopen(descriptor, "rb") as file, tempfile.TemporaryFile() as content:
        if opener is None:
            raise _unreadable(url, "its format is not supported")
        try:
            with opener(file) as reader:
                shutil.copyfileobj(reader, content, _CHUNK)
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            raise _unreadable(url, str(error)) from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise _unreadable(url, str(error)) from error
        content.flush()
        return os.dup(content.fileno())


def _unreadable(url: str, reason: str) -> FatalError:
    return FatalError(
        f"{url} can't be decompressed: {reason}",
        code="file.compressed",
        place=url,
        fix="decompress it, keep its name without the suffix, and run again",
    )


_BACK: Final = 1 << 16


MARK: Final = 256
"""Number of bytes at either end that a mark covers."""


class FileChanged(Exception):  # noqa: N818  # no failure: a reason to look again
    """Raised if the file is not, or no longer, the one seen before."""


class OpenFile:
    """A file behind one open descriptor, whatever its path now refers to.

    Reads at explicit offsets, without a current position: marks may be taken while lines are read. Closed by ``with``,
    or when it is garbage-collected; a block that was read keeps it, for its boundaries. A remote file has no
    descriptor: reads go by name through its file system, and only marks detect another file.
    """

    def __init__(self, url: str, name: str = "", unpack: bool = False, flags: int = os.O_RDONLY) -> None:
        """Open the file; with ``unpack``, the content of a compressed one, in a temporary file.

        Raises ``OSError``, and ``FatalError`` (``file.compressed``) if it can't be decompressed.
        """
        self.url = url
        path = storage.local_path(url)
        self._remote: IO[bytes] | None = None
        self.descriptor = -1
        """The open file; -1 for a remote one."""
        self._ends: dict[int, bytes] = {}
        self._head = b""
        if path is None:
            self._remote = storage.open_read(url)
            self._close = weakref.finalize(self, self._remote.close)
            self.found = FoundFile(url, name, 0, self._remote.seek(0, os.SEEK_END), 0)
        else:
            # a pipe in the file's place must not block: the opened file is compared with the expected one afterwards
            self.descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
            self.found = found_of(url, name, os.fstat(self.descriptor), self.descriptor)
            if unpack and (content := _unpacked(self.descriptor, url)) != self.descriptor:
                self.descriptor = content
                self.found = self.found._replace(size=os.fstat(content).st_size, unpacked=True)
            self._close = weakref.finalize(self, os.close, self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; may be repeated."""
        self._close()

    def read_at(self, offset: int, size: int) -> bytes:
        """Return the bytes from ``offset``, fewer than ``size`` only at the end of the file."""
        data = self._read(offset, size)
        if len(data) == size or not data:
            return data
        pieces, left, at = [data], size - len(data), offset + len(data)
        while left and (data := self._read(at, left)):
            pieces.append(data)
            left, at = left - len(data), at + len(data)
        return b"".join(pieces)

    def _read(self, offset: int, size: int) -> bytes:
        if self._remote is None:
            try:
                return os.pread(self.descriptor, size, offset)
            except OSError as error:
                error.filename = self.url  # the system names no file behind a descriptor
                raise
        self._remote.seek(offset)
        return self._remote.read(size)

    def chunks(self, start: int, length: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from ``start``, at most ``length``, in chunks."""
        at, end = start, start + (length if length is not None else 1 << 62)
        while at < end and (data := self.read_at(at, min(_CHUNK, end - at))):
            yield data
            at += len(data)

    # -- identity -------------------------------------------------------------------------------------------------

    def holds(self, file: TrackedFile) -> bool:
        """Return whether this is the tracked file, with the part already read unchanged as far as its mark shows."""
        return file.may_be(self.found) and self.begins_like(file)

    def begins_like(self, file: TrackedFile) -> bool:
        """Return whether this has the part of the tracked file already read, as far as its mark shows.

        If nothing of it is read, what was seen of it instead.
        """
        self._head = self.read_at(0, MARK)
        if not file.offset:
            return not file.ahead or self.mark(file.ahead) == file.ahead_mark
        return self.found.size >= file.offset and self.mark(file.offset) == file.mark

    def lost(self, file: TrackedFile) -> bool:
        """Return whether unread bytes of the tracked file that were seen before are missing."""
        if self.found.size < file.size:
            return file.size > file.offset
        return file.ahead > file.offset and self.mark(file.ahead) != file.ahead_mark

    def mark(self, offset: int, before: bytes = b"") -> str:
        """Return a digest of the first and the last bytes before ``offset``; empty at the beginning of a file.

        Raises ``FileChanged`` if they differ from the bytes seen when the lines up to ``offset`` were counted, or do
        not end in ``before``.
        """
        if offset == 0:
            return ""
        size = min(MARK, offset)
        head, tail = self.read_at(0, size), self.read_at(offset - size, size)
        # the file may be truncated and rewritten between counting its lines and taking its mark: the position would
        # then combine a line number of the old content with a mark of the new one
        if not (head.startswith(self._head[:offset]) and tail.endswith(before or self._ends.get(offset, b""))):
            raise FileChanged
        return hashlib.sha256(head + tail).hexdigest()[:16]

    def passed(self, end: int, before: bytes) -> None:
        """Store the bytes before a counted line end, for :meth:`mark` to compare."""
        self._ends[end] = before

    def last_line_end(self, low: int) -> int:
        """Return the offset after the last line end after ``low``, or ``low`` if there is none near the file's end."""
        begin = max(low, self.found.size - _BACK)
        place = self.read_at(begin, max(0, self.found.size - begin)).rfind(b"\n")
        return begin + place + 1 if place >= 0 else low

    def is_line_end(self, offset: int) -> bool:
        """Return whether a line ends at an offset; True at the beginning of the file."""
        return offset == 0 or self.read_at(offset - 1, 1) == b"\n"


class WritableFile(OpenFile):
    """A file open for writing, whose existing content can be read."""

    def __init__(self, path: Path, flags: int = 0) -> None:
        """``flags``: ``os.O_CREAT`` creates it. Raises ``OSError``, and ``FatalError`` (``file.not_regular``)."""
        super().__init__(str(path), flags=os.O_RDWR | flags)
        if not stat.S_ISREG(os.fstat(self.descriptor).st_mode):
            raise FatalError(
                f"{path} is not a regular file",
                code="file.not_regular",
                place=str(path),
                fix="name a file; devices and pipes can't keep an order across restarts",
            )


def open_found(found: FoundFile) -> OpenFile | None:
    """Open a found file; None if its path no longer exists.

    Raises ``TransientError`` if it can't be opened, and ``FatalError`` if it can't be decompressed. The opened file may
    differ from the found one.
    """
    try:
        return OpenFile(found.url, found.name, found.unpacked)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise from_os_error(error, f"can't read {found.name}") from error


def open_tracked(found: FoundFile, file: TrackedFile) -> OpenFile | None:
    """Open the found file if it is the tracked one and the part already read is unchanged; otherwise return None."""
    opened = open_found(found)
    if opened is None or opened.holds(file):
        return opened
    opened.close()
    return None


def begin_otherwise(one: FoundFile, other: FoundFile) -> bool:
    """Return whether two files have different first bytes, or only the second one is empty."""
    head, begin = (_head(found) for found in (one, other))
    common = min(len(head), len(begin))
    return bool(head) and (not common or head[:common] != begin[:common])


def _head(found: FoundFile) -> bytes:
    opened = open_found(found)
    if opened is None:
        return b""
    with opened:
        return opened.read_at(0, MARK)
