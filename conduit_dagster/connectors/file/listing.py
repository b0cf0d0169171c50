"""Files that a path currently refers to, in reading order."""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import re
import stat
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from conduit_dagster import storage
from conduit_dagster.connectors.file.file_state import FoundFile, found_at, found_of
from conduit_dagster.connectors.file.open_file import is_packed, open_found
from conduit_dagster.connectors.file.settings import GLOB
from conduit_dagster.recovery.errors import FatalError, TransientError, from_os_error


def look(url: str, name: str) -> FoundFile | None:
    """Return the file's current state, or None if it does not exist.

    Raises ``OSError`` if it can't be examined, and ``FatalError`` if it is a pipe, a socket or a device.
    """
    path = storage.local_path(url)
    if path is None:
        size = storage.size(url)
        return None if size is None else FoundFile(url, name, 0, size, 0)
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    _require_regular(url, state)
    return found_of(url, name, state, str(path))


def _require_regular(url: str, state: os.stat_result) -> None:
    if not stat.S_ISREG(state.st_mode) and not stat.S_ISDIR(state.st_mode):
        raise FatalError(
            f"{url} is not a regular file",
            code="file.not_regular",
            place=url,
            fix="name a file, or choose a glob that leaves it out; pipes and devices can't be read a second time",
        )


def is_many(path: str, root: str) -> bool:
    """Return whether the path, as written, means a folder or a glob rather than one file."""
    local = storage.local_path(path)
    return bool(GLOB & set(path)) or path.endswith("/") or (local is not None and os.path.isdir(Path(root, local)))  # noqa: PTH112


def require_local(path: str) -> None:
    """Raise ``FatalError`` if a folder or glob is not on this machine."""
    if not storage.is_local(path):
        raise FatalError(
            f"a folder or glob of files must be local, not {path}",
            code="file.not_local",
            fix="name one file, or mount the folder",
        )


HIDDEN: Final = "._"
"""First characters of hidden names, as for Spark's readers."""
FolderEntry = tuple[str, int]
"""Path and inode of an unexamined folder entry: it may be a folder, or missing.

The inode is the one in the folder, which on some file systems differs from the file's own; 0 if unknown.
"""
_COARSEST = 2_500_000_000
"""Maximum time in nanoseconds between two changes of a folder that get the same time stamp, on any file system."""
_LISTED_FOR = 10_000_000_000
"""Nanoseconds after which a folder is listed again in any case: a file system may report its changes late."""


class FolderEntries:
    """Entries of a folder or glob by name, without hidden and ``_`` ones, as in Spark."""

    def __init__(self, path: str, root: str, exclude: Sequence[str] = ()) -> None:
        """``path`` as written, relative to the project's ``root``; ``exclude``: globs of names to leave out.

        Raises ``FatalError`` if it is not local.
        """
        require_local(path)
        self._excluded = re.compile("|".join(map(fnmatch.translate, exclude)) or "(?!)").match
        self._path = path
        written = path.removeprefix("file://")
        self._root = root
        is_glob = bool(GLOB & set(written))
        self._pattern = written if is_glob else os.path.join(glob.escape(written), "*")  # noqa: PTH118
        folder, self._last = os.path.split(written if is_glob else os.path.join(written, "*"))  # noqa: PTH118
        self._folder = None if is_glob and GLOB & set(folder) else os.path.join(root, folder, "")  # noqa: PTH118
        self._listed: list[FolderEntry] = []
        self._at = self._changed = 0
        self._has_warned = False

    @property
    def is_flat(self) -> bool:
        """Whether all entries are of one folder. Those of a glob of folders have no inodes."""
        return self._folder is not None

    def folders(self) -> set[str]:
        """Return the folders that are listed."""
        return {self._folder} if self._folder is not None else {str(Path(path).parent) for path, _ in self.now()}

    def forget(self) -> None:
        """List the entries again in the next scan."""
        self._changed = 0

    def newest(self) -> list[FolderEntry]:
        """Return the entries. Those of an unchanged folder are not listed again for some seconds.

        Raises ``TransientError`` if a folder can't be listed.
        """
        if self._folder is None:
            entries = self.now()
            self._warn_of_brackets(entries)
            return entries
        try:
            changed = os.stat(self._folder).st_mtime_ns  # noqa: PTH116  # its path may be empty
        except OSError:
            return self.now()
        now = time.time_ns()
        # a change right after the listing may leave the time stamp unchanged
        is_certain = self._at - changed > _COARSEST
        if changed != self._changed or not is_certain or not 0 <= now - self._at < _LISTED_FOR:
            self._listed, self._at, self._changed = self.now(), now, changed
            self._warn_of_folders()
            self._warn_of_brackets(self._listed)
        return self._listed

    def _warn_of_folders(self) -> None:
        """Warn once of a path with nothing but folders: Spark's own readers would read the files in them."""
        if not self._has_warned and self._listed and all(os.path.isdir(path) for path, _ in self._listed):  # noqa: PTH112
            self._has_warned = True
            structlog.get_logger("conduit.file").warning(
                "nothing is read: the path holds only folders", path=self._pattern, fix=f"path: {self._pattern}/*"
            )

    def _warn_of_brackets(self, entries: list[FolderEntry]) -> None:
        """Warn once of a glob that matches nothing, where its brackets are a part of existing names."""
        if self._has_warned or entries or "[" not in self._pattern:
            return
        written = self._pattern.replace("[", "[[]")
        found = None
        with suppress(OSError):  # a folder that the glob does not mean
            found = next(_matching(self._root, written), None)
        if found is not None:
            self._has_warned = True
            in_it = "/*" if os.path.isdir(os.path.join(self._root, found)) else ""  # noqa: PTH112, PTH118
            structlog.get_logger("conduit.file").warning(
                "nothing is read: brackets in the path stand for one of the characters in them",
                path=self._pattern,
                fix=f"path: {written.rstrip('/')}{in_it}",
            )

    def now(self) -> list[FolderEntry]:
        """Return the current entries; none of a folder that is missing, since it may be created later.

        Raises ``TransientError`` if a folder can't be listed: its files are not gone, and would be read again later.
        """
        try:
            return self._globbed() if self._folder is None else self._scanned(self._folder)
        except OSError as error:
            raise self._unlisted(error) from error

    def _globbed(self) -> list[FolderEntry]:
        names = sorted(_matching(self._root, self._pattern))
        shown = (name for name in names if self._is_shown(name.rpartition("/")[2]))
        return [(os.path.join(self._root, name), 0) for name in shown]  # noqa: PTH118

    def _scanned(self, folder: str) -> list[FolderEntry]:
        found: list[tuple[str, int]] = []
        with _missing_allowed(), os.scandir(folder) as entries:
            shown = (entry for entry in entries if self._is_shown(entry.name))
            found = sorted((entry.name, 0 if entry.is_symlink() else entry.inode()) for entry in shown)
        if self._last != "*":
            wanted = re.compile(fnmatch.translate(self._last)).match
            found = [entry for entry in found if wanted(entry[0])]
        return [(folder + name, inode) for name, inode in found]

    def _unlisted(self, error: OSError) -> TransientError:
        found = from_os_error(error, f"can't list the files of {self._path}")
        if self._folder is not None:
            return found
        fix = "; or ".join(filter(None, (found.fix, "choose a glob that leaves it out")))
        return TransientError(found.message, code=found.code, place=found.place, fix=fix)

    def _is_shown(self, name: str) -> bool:
        return not name.startswith(tuple(HIDDEN)) and not self._excluded(name)


_MISSING: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


@contextmanager
def _missing_allowed() -> Generator[None]:
    """Suppress the ``OSError`` of a path that leads nowhere, such as a link in a circle."""
    try:
        yield
    except OSError as error:
        if error.errno not in _MISSING:
            raise


def _matching(root: str, pattern: str) -> Iterator[str]:
    """Yield the paths that match a pattern, relative to ``root`` like it. Unlike ``glob.glob``, raises ``OSError``.

    A missing folder has none. As in ``glob.glob``, only a pattern with a leading dot matches such a name.
    """
    folder, last = os.path.split(pattern)
    for parent in _matching(root, folder) if GLOB & set(folder) else [folder]:
        with _missing_allowed():
            names = _names(os.path.join(root, parent), last)  # noqa: PTH118
            yield from [os.path.join(parent, name) for name in names]  # noqa: PTH118


def _names(folder: str, pattern: str) -> list[str]:
    if not GLOB & set(pattern):
        os.lstat(os.path.join(folder, pattern))  # noqa: PTH118  # raises if it is missing
        return [pattern]
    matches = re.compile(fnmatch.translate(pattern)).match
    return [name for name in os.listdir(folder) if matches(name) and (name[0] != "." or pattern[0] == ".")]  # noqa: PTH208


def list_many(path: str, root: str, exclude: Sequence[str]) -> list[FoundFile]:
    """Return the files of a folder or glob by name; one with two names, such as a link to the newest one, once."""
    return _once(_files(path for path, _ in FolderEntries(path, root, exclude).now()))


def _files(paths: Iterable[str]) -> Iterator[FoundFile]:
    """Yield the files among the paths."""
    return (found for path in paths if (found := examine(path)) is not None)


def examine(path: str) -> FoundFile | None:
    """Return the state of the file at a path, examined once; None for a folder or a missing file.

    Raises ``TransientError`` if it can't be examined.
    """
    try:
        state = os.stat(path)  # noqa: PTH116  # a folder may have a hundred thousand
    except FileNotFoundError:
        return None
    except OSError as error:
        raise from_os_error(error, f"can't read {path}") from error
    if stat.S_ISDIR(state.st_mode):
        return None
    _require_regular(path, state)
    return found_at(path, _checked(path.rpartition("/")[2]), state)


_sizes: dict[tuple[int, int, int], tuple[int, bool]] = {}
"""Size of the content of a file with the suffix of a compressed one, and whether it is compressed."""
_MOST_SIZES: Final = 10_000


def examine_content(path: str) -> FoundFile | None:
    """Return the state of a file as :func:`examine` does, with the size of its decompressed content.

    None if it is missing, a folder, or can't be decompressed.
    """
    found = examine(path)
    if found is None or not is_packed(path):
        return found
    key = found.device, found.inode, found.changed
    if key not in _sizes:
        try:
            opened = open_found(found._replace(unpacked=True))
        except FatalError:
            return None
        if opened is None:
            return None
        with opened:
            found = opened.found
        if len(_sizes) >= _MOST_SIZES:
            _sizes.clear()
        _sizes[key] = found.size, found.unpacked
        return found
    size, unpacked = _sizes[key]
    return found._replace(size=size, unpacked=unpacked)


def _checked(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise FatalError(
            f"the file name {name.encode('utf-8', 'backslashreplace').decode()} is not UTF-8",
            code="file.name_invalid",
            fix="rename the file, or choose a glob that leaves it out",
        ) from None
    return name


def list_family(path: str) -> list[FoundFile]:
    """Return a path's uncompressed rotated files (``path.*``, ``path-*``), oldest change first, then the path itself.

    The path is examined first: a file renamed in between is found under its new name, so that none is missed.
    """
    local = storage.local_path(path)
    current = look(path, path.rsplit("/", 1)[-1])
    itself = [current] if current is not None else []
    if local is None or not local.parent.is_dir():
        return itself
    # behind a link it is the target that is rotated
    places = [*dict.fromkeys((local, Path(os.path.realpath(local))))]
    found = _files(path for place in places for path in _rotated(place))
    rotated = sorted(found, key=lambda one: (one.modified, one.name))
    return _once([*rotated, *itself])


def is_rotated(name: str, of: str) -> bool:
    """Return whether a name is one that a rotation gives to the file ``of``."""
    return name.startswith((f"{of}.", f"{of}-"))


def _rotated(local: Path) -> list[str]:
    """Return the paths of a file's rotated versions. Their folder may hold thousands of other files."""
    if not local.parent.is_dir():
        return []
    with os.scandir(local.parent) as entries:
        # sockets and pipes beside the file are ignored: the settings did not name them
        found = [one.name for one in entries if is_rotated(one.name, local.name) and one.is_file()]
    return [str(local.parent / name) for name in found if not is_packed(name)]


def _once(files: Iterable[FoundFile]) -> list[FoundFile]:
    kept: dict[str, FoundFile] = {}
    for found in files:
        kept.setdefault(found.ident, found)
    return list(kept.values())
