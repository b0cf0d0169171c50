"""Files of a store behind a URL, such as S3, through fsspec. Every error is an ``OSError``, as that of a disk."""

from __future__ import annotations

import errno
import io
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import IO, Any, Final

_BUFFER: Final = 1 << 20
_PATTERN: Final = frozenset("*?[")
_MISSING: Final = "there is no such file or folder"
_OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl"})
_TAKEN: Final = ("PreconditionFailed", "412")
_NO_REASON: Final = "400"
"""What S3's client takes for the code of an answer without a body, as to HEAD: also where credentials have expired."""
_UNSAID: Final = (
    "the store gives no reason in this answer; often the credentials have expired, or the bucket is in another region"
)
_LOGIN: Final = ("Credential", "Token", "Unauthorized", "Forbidden")
_AWAY: Final = ("Connect", "Timeout", "HTTPClientError")


class StoreError(OSError):
    """An error of a store: with the number of the same error of a disk, the store's own words, and the URL."""


class NoSuchFileError(StoreError, FileNotFoundError):
    """Raised for a file or a folder that a store does not have."""


class NoSuchBucketError(NoSuchFileError):
    """Raised if the bucket itself is missing: unlike a file, it is not expected to appear."""


class FileThereError(StoreError, FileExistsError):
    """Raised for a new file whose name is taken."""


def store_error(error: Exception, url: str) -> StoreError:
    """Return the error of a store's client as an ``OSError``; most clients have classes of their own."""
    text = " ".join((str(error.strerror or error) if isinstance(error, OSError) else str(error)).split())
    scheme, _, rest = url.partition("://")
    shown = f"{scheme}://{rest.rpartition('@')[2]}"
    if isinstance(error, FileNotFoundError):
        said = _MISSING if text in url else text
        return (NoSuchBucketError if "bucket" in said else NoSuchFileError)(errno.ENOENT, said, shown)
    if isinstance(error, FileExistsError):
        return FileThereError(errno.EEXIST, text, shown)
    if _answered(error) == _NO_REASON:
        text = f"{text}: {_UNSAID}"
    return StoreError(_number(error), text or type(error).__name__, shown)


def _answered(error: Exception) -> str:
    """Return the code of S3's answer that its client made an error of; empty if there was none."""
    answer = getattr(error.__cause__, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""


def _number(error: Exception) -> int:
    names, code = [kind.__name__ for kind in type(error).__mro__], _answered(error)
    if isinstance(error, PermissionError) or any(word in name for name in (names[0], code) for word in _LOGIN):
        return errno.EACCES
    if code == _NO_REASON:
        return errno.EACCES
    if isinstance(error, OSError) and error.errno:
        return error.errno
    return errno.EHOSTUNREACH if any(word in name for name in names for word in _AWAY) else errno.EIO


def protocol_problem(url: str) -> str | None:
    """Return why the file system of a URL can't be used in this process, or None. Opens no connection."""
    import fsspec  # imported late: commands that read only the state store need no file system

    for protocol in url.rpartition("://")[0].split("::"):
        try:
            fsspec.get_filesystem_class(protocol.rpartition("://")[2])
        except (ImportError, ValueError) as error:
            return str(error)
    return None


@contextmanager
def store_of(url: str) -> Generator[tuple[Any, str]]:
    """Yield the file system of a URL, and the URL's name there. Raises ``StoreError`` for errors inside."""
    from fsspec.core import url_to_fs  # imported late: commands that read only the state store need no file system

    fs: Any = None
    try:
        try:
            # a kept listing never expires, and hides what other processes write after it
            fs, name = url_to_fs(url, use_listings_cache=False)
        except TypeError:  # sftp, for one, passes every option on to its client
            fs, name = url_to_fs(url)
            fs.invalidate_cache()
        yield fs, name
    except StoreError:
        raise
    except Exception as error:  # each client has errors of its own
        raise _failed(error, url, fs) from error


def _failed(error: Exception, url: str, fs: Any) -> StoreError:
    """Return the error of a store. After a refused login the next access logs in anew.

    Clients live as long as the process, with the credentials that they read first, also from a file that is rotated.
    """
    found = store_error(error, url)
    if found.errno == errno.EACCES and fs is not None:
        fs.clear_instance_cache()
    return found


def has_folders(url: str) -> bool:
    """Return whether folders exist by themselves. In an object store, creating one would create a missing bucket."""
    return url.partition("://")[0] not in _OBJECT_STORES


def open_stored(url: str) -> IO[bytes]:
    """Open a file for reading. Lines are buffered: the file systems themselves copy a whole block for each."""
    with store_of(url) as (fs, name):
        return io.BufferedReader(_StoredFile(fs.open(name, "rb"), url), _BUFFER)


def create_stored(url: str) -> IO[bytes]:
    """Open a new file for writing; an object store looks for an existing one only when the new one is closed."""
    with store_of(url) as (fs, name):
        opened: Any = _StoredFile(fs.open(name, "xb"), url)
        return opened


def move_stored(fs: Any, old: str, new: str) -> None:
    """Rename a file of a store; a store without renames copies it, and removes the old one."""
    from fsspec import AbstractFileSystem

    if type(fs).mv is not AbstractFileSystem.mv:
        fs.mv(old, new)
        return
    # fsspec's own mv takes a name with *, ? or [ for a pattern, and moves the files that match
    fs.cp_file(old, new)
    fs.rm_file(old)


def remove_stored(fs: Any, name: str) -> None:
    """Remove a folder of a store with its contents. May raise ``FileNotFoundError`` if it does not exist."""
    if not _PATTERN.intersection(name):  # as above: rm would remove the folders that match
        fs.rm(name, recursive=True)
    # s3fs does not tell which of many objects S3 refuses to remove; one that is removed by itself raises the reason
    for left, found in sorted(fs.find(name, withdirs=True, detail=True).items(), reverse=True):
        with suppress(FileNotFoundError):  # a folder without an entry of its own ends with its last file
            if found["type"] != "directory":
                fs.rm_file(left)
            elif has_folders(fs.unstrip_protocol(left)):
                fs.rmdir(left)


def _refused_name(error: Exception) -> FileExistsError | None:
    """Return the error of a new file whose name is taken; s3fs knows it only where S3's answer repeats the header."""
    return FileExistsError(str(error)) if _answered(error) in _TAKEN else None


class _StoredFile(io.RawIOBase):
    """An open file of a store; its errors are the same as those of the store itself."""

    def __init__(self, file: Any, url: str) -> None:
        super().__init__()
        self._file, self._url = file, url

    def readable(self) -> bool:
        """Return whether it was opened for reading."""
        return bool(self._file.readable())

    def writable(self) -> bool:
        """Return whether it was opened for writing."""
        return bool(self._file.writable())

    def seekable(self) -> bool:
        """Return True: stores read at any offset."""
        return True

    def readinto(self, into: Any, /) -> int:
        """Read into a buffer; return the number of bytes, 0 at the end."""
        try:
            data = self._file.read(len(into))
        except Exception as error:  # as in store_of, without its cost
            raise self._error(error) from error
        into[: len(data)] = data
        return len(data)

    def write(self, data: Any, /) -> int:
        """Pass bytes on."""
        try:
            return self._file.write(data)
        except Exception as error:
            raise self._error(error) from error

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to an offset."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the current offset."""
        return self._file.tell()

    def close(self) -> None:
        """Close it; a new file is complete and visible then. May be repeated."""
        if self.closed:
            return
        try:
            self._file.close()
        except Exception as error:
            raise self._error(_refused_name(error) or error) from error
        finally:
            super().close()

    def _error(self, error: Exception) -> StoreError:
        return _failed(error, self._url, getattr(self._file, "fs", None))
