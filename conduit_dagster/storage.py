"""Files at URLs that both fsspec and Spark can open: staging, and the segments of the commit log."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Self
from urllib.parse import quote

from conduit_dagster.private_home import file_mode, is_private, private_folder
from conduit_dagster.store_files import (
    NoSuchBucketError,
    create_stored,
    has_folders,
    move_stored,
    open_stored,
    remove_stored,
    store_of,
)

_CHUNK = 1 << 20
_PIECE = 1 << 14
_LONGEST = 255
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
_NO_SYNC = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS)


def local_path(url: str) -> Path | None:
    """Return the local path of ``url``, or None if it is not local."""
    if url.startswith("file://"):
        return Path(url.removeprefix("file://"))
    return None if "://" in url else Path(url)


@contextmanager
def naming(path: str) -> Generator[None]:
    """Give an ``OSError`` inside the path of the file: the system's own for an open file has none."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


def is_local(url: str) -> bool:
    """Return whether ``url`` is a path of this machine."""
    return "://" not in url or url.startswith("file://")


def inside(path: str, root: str) -> str:
    """Return a path inside the project relative to its folder; any other text unchanged."""
    return path.removeprefix(root.rstrip("/") + "/")


def join(url: str, *names: str) -> str:
    """Return ``url`` with names appended."""
    return "/".join([url.rstrip("/"), *names])


def safe_name(name: str) -> str:
    """Return ``name`` as a safe path component: a pipeline may be named ``..``.

    A name longer than file systems accept is truncated and ends in a digest.
    """
    safe = quote(name, safe="-_") if name.strip(".") else name.replace(".", "%2E")
    if len(safe) <= _LONGEST:
        return safe
    # cannot collide with a shorter name: ids have no tilde, and quoting adds none
    return f"{safe[:180]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def make_folder(url: str) -> None:
    """Create a folder and its parents; no effect if it exists, or in an object store, which has none.

    In a home they are for its user only.
    """
    path = local_path(url)
    if path is None:
        if has_folders(url):
            with store_of(url) as (fs, name):
                fs.makedirs(name, exist_ok=True)
    elif not path.is_dir():
        if is_private(path):
            private_folder(path)
        path.mkdir(parents=True, exist_ok=True)


def create(url: str) -> IO[bytes]:
    """Open a new file for writing; an existing one is an error and is never overwritten."""
    path = local_path(url)
    if path is not None:
        return open(path, "xb", buffering=_PIECE, opener=_open_new)  # Path.open has no opener
    return create_stored(url)


def _open_new(name: str, flags: int) -> int:
    return os.open(name, flags, file_mode(Path(name)))


def put_new(url: str, data: bytes) -> bool:
    """Create a file with these bytes, durably and atomically; return False if it already exists.

    At an object store one with the same bytes counts as ours: after a lost answer the store's client sends it again,
    and is refused its own file. Where two writers must not both succeed, let their bytes differ.

    On a local file system without hard links a crash may leave a partial file.
    """
    path = local_path(url)
    if path is None:
        return _put_there(url, data)
    whole = path.with_name(f".{secrets.token_hex(8)}")
    file = NewFile(str(whole))
    try:
        with file:
            file.write(data)
            file.finish()
        os.link(whole, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _put_there(url, data)
    finally:
        whole.unlink(missing_ok=True)
        sync(str(path.parent))
    return True


def _put_there(url: str, data: bytes) -> bool:
    try:
        file = NewFile(url)
    except FileExistsError:
        return False
    try:
        with file:
            file.write(data)
            file.finish()
    except FileExistsError:
        return False  # an object store looks only at the end
    except BaseException:
        with suppress(OSError):
            if is_local(url) or _is_torn(url, data):
                remove(url)
        raise
    return True


def _is_torn(url: str, data: bytes) -> bool:
    """Return whether a file is the beginning of our data, which must not take the name.

    Any other file at an object store may be that of another writer, which the failed one was too late for.
    """
    there = b"".join(chunks(url))
    return len(there) < len(data) and data.startswith(there)


def link(source: Path, into: Path) -> None:
    """Link a file under a second name; copy it durably if the file system has no hard links.

    Raises ``OSError``. Does not sync the new directory entry, and ``source`` must already be durable.
    """
    try:
        os.link(source, into)
    except OSError:
        shutil.copyfile(source, into)
        sync(str(into))


def open_read(url: str) -> IO[bytes]:
    """Open a file for reading."""
    path = local_path(url)
    return open_stored(url) if path is None else path.open("rb")


def size(url: str) -> int | None:
    """Return the file's length in bytes, or None if the file does not exist, but its bucket does."""
    path = local_path(url)
    if path is not None:
        return path.stat().st_size if path.is_file() else None
    try:
        with store_of(url) as (fs, name):
            found = fs.info(name)
    except NoSuchBucketError:
        raise
    except FileNotFoundError:
        return None
    return int(found["size"]) if found["type"] == "file" else None


def sync(url: str) -> None:
    """Make a file's bytes, or a folder's entries, durable.

    A new file needs both: a crash may lose it if only its bytes are synced. Some network disks sync no folders.
    """
    path = local_path(url)
    if path is None:
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC or not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise
    finally:
        os.close(descriptor)


def sync_levels(url: str, levels: int) -> None:
    """Sync a folder, and those above it: ``levels`` in all."""
    for _ in range(levels):
        sync(url)
        url = url.rsplit("/", 1)[0]


def sync_entry(url: str) -> None:
    """Sync every parent folder of ``url``, up to its mount point: any of them may be new.

    A crash may lose a file if only its bytes are synced. Raises ``OSError``. The walk ends at an unreadable folder
    further up, since we did not create it.
    """
    path = local_path(url)
    if path is None:
        return
    real = path.resolve()
    device = real.stat().st_dev
    for folder in real.parents:
        if folder.stat().st_dev != device or (folder != real.parent and not os.access(folder, os.R_OK)):
            return
        sync(str(folder))


def remove_folder(url: str) -> None:
    """Remove a folder with its contents; no effect if it does not exist. Raises ``OSError`` if something stays."""
    path = local_path(url)
    if path is not None:
        shutil.rmtree(path, ignore_errors=True)
        with suppress(FileNotFoundError):
            shutil.rmtree(path)  # raises what kept the first one from removing all
        return
    with suppress(FileNotFoundError), store_of(url) as (fs, name):
        remove_stored(fs, name)


def folders(url: str) -> list[str]:
    """Return the current names of the folders directly below ``url``."""
    path = local_path(url)
    if path is not None:
        return sorted(p.name for p in path.iterdir() if p.is_dir()) if path.is_dir() else []
    return _entries(url, "directory")


def files(url: str) -> list[str]:
    """Return the current names of the files directly below ``url``."""
    path = local_path(url)
    if path is not None:
        # the entries know their kind: no look at each of many thousands
        return sorted(entry.name for entry in os.scandir(path) if entry.is_file()) if path.is_dir() else []
    return _entries(url, "file")


def _entries(url: str, kind: str) -> list[str]:
    try:
        with store_of(url) as (fs, name):
            found = fs.ls(name, detail=True)
    except FileNotFoundError:
        return []
    # a folder made by another program may be an empty object, which is listed among what is in it
    listed = [entry for entry in found if entry["name"].strip("/") != name.strip("/")]
    return sorted(e["name"].rstrip("/").rsplit("/", 1)[-1] for e in listed if e["type"] == kind)


def rename(old: str, new: str) -> None:
    """Rename a file within the same disk or store; atomic only on the local disk."""
    path = local_path(old)
    if path is not None:
        path.rename(Path(local_path(new) or new))
        return
    with store_of(old) as (fs, name), store_of(new) as (_, into):
        move_stored(fs, name, into)


def copy(old: str, new: str) -> None:
    """Copy a file within the same store, which is not the local disk."""
    with store_of(old) as (fs, name), store_of(new) as (_, into):
        fs.cp_file(name, into)


def remove(url: str) -> None:
    """Remove a file; no effect if it does not exist."""
    path = local_path(url)
    if path is not None:
        path.unlink(missing_ok=True)
        return
    with suppress(FileNotFoundError), store_of(url) as (fs, name):
        fs.rm_file(name)


def chunks(url: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
    """Yield the bytes from ``start``, at most ``length`` of them, in pieces."""
    left = length if length is not None else 1 << 62
    with open_read(url) as file:
        file.seek(start)
        while left and (data := file.read(min(_CHUNK, left))):
            left -= len(data)
            yield data


def digest(url: str, start: int = 0, length: int | None = None) -> tuple[int, str]:
    """Compute the length and SHA-256 of a range of a file."""
    total, sha = 0, hashlib.sha256()
    for data in chunks(url, start, length):
        total += len(data)
        sha.update(data)
    return total, sha.hexdigest()


class NewFile:
    """A file being written: its bytes are counted and digested, and durable once :meth:`finish` has returned.

    Leave none open: Python itself would write what still waits, and from 3.13 on print the error of a full disk.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.bytes = 0
        self._sha = hashlib.sha256()
        self._file = create(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def write(self, data: bytes) -> None:
        """Append bytes; small pieces wait for others.

        A full disk raises ``OSError``, here or in :meth:`finish`, and then nothing in the file counts.
        """
        with naming(self.url):
            self._file.write(data)
        self._sha.update(data)
        self.bytes += len(data)

    def finish(self) -> str:
        """Sync and close; return the SHA-256 of everything written."""
        self._sync()
        try:
            self._file.close()
        except OSError:
            if not self._is_stored():
                raise
        return self._sha.hexdigest()

    def _is_stored(self) -> bool:
        """Return whether a store has the file, although it refused it or did not answer.

        A client that loses the answer sends the file again, and is refused because of the one that it sent before.
        """
        if is_local(self.url):
            return False
        try:
            return digest(self.url) == (self.bytes, self._sha.hexdigest())
        except OSError:
            return False

    def _sync(self) -> None:
        if is_local(self.url):
            with naming(self.url):
                self._file.flush()
                os.fsync(self._file.fileno())

    def abort(self) -> None:
        """Close without any durability guarantee; no effect on a finished file."""
        with suppress(OSError):
            # what is still waiting does not count: a disk that is full does not matter any more
            self._file.close()
