"""Compressed files: how they are recognised, and their content."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping
from typing import IO, Any, Final

from conduit_dagster.recovery.errors import FatalError

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


def unpacked(descriptor: int, url: str) -> int:
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
