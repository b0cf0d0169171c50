"""Files of a path to Parquet files. In a large folder, fully read files are examined in turns."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from conduit_dagster.connectors.file.file_state import FoundFile
from conduit_dagster.connectors.file.folder_scan import EntryTurns, ExaminedEntries
from conduit_dagster.connectors.file.listing import FolderEntries, FolderEntry, is_many, look
from conduit_dagster.connectors.file.settings import GLOB
from conduit_dagster.connectors.parquet.parquet_position import FinishedParquets
from conduit_dagster.recovery.errors import TransientError

Wanted = Callable[[str], bool] | None
"""Whether to list a file with this name; None means all files."""


class Listed(NamedTuple):
    """Result of a listing."""

    files: list[FoundFile]
    """Files that were examined, in reading order."""
    settled: set[int]
    """Numbers of finished files that were not examined: an entry with the same name and inode exists."""
    in_order: Callable[[list[FoundFile]], Iterator[FoundFile]]
    """Yields the given examined files, and the new ones that were not examined yet, in reading order. May raise
    ``OSError`` or a ``ConduitError``.
    """


def listed_whole(files: list[FoundFile]) -> Listed:
    """Return a listing of files that were all examined."""
    return Listed(files, set(), iter)


class Listing(Protocol):
    """Listing of a source's files."""

    ordered: bool
    """Whether each new file's name sorts after all others, so that the last name read identifies all files read."""

    def files(self, wanted: Wanted, finished: FinishedParquets, known: Collection[str]) -> Listed:
        """Return the existing files that are wanted. May raise ``OSError`` or a ``ConduitError``.

        ``finished`` files need not be examined, nor new ones; ``known``: names of others that must be.
        """
        ...

    def forget(self) -> None:
        """Examine all files in the next scan."""


class ListedFiles:
    """Listing of a path's files by name, without hidden ones."""

    ordered = False

    def __init__(self, path: str, resolved: str, root: str) -> None:
        """``path`` as written, ``resolved`` against the project's ``root``."""
        self._path, self._resolved, self._root = path, resolved, root
        self._folder: _Folder | None = None

    def forget(self) -> None:
        """Examine all files in the next scan."""
        self._folder = None

    def files(self, wanted: Wanted, finished: FinishedParquets, known: Collection[str]) -> Listed:
        """Return the wanted files. Raises ``TransientError`` if the path names one file, which is missing.

        A file of a folder that has two names, such as a link to the newest one, is listed once.
        """
        # checked on every call: a folder may appear later
        if is_many(self._path, self._root):
            self._folder = self._folder or _Folder(self._path, self._root)
            return self._folder.files(wanted, finished, known)
        found = look(self._resolved, self._resolved.rsplit("/", 1)[-1])
        if found is None:
            raise TransientError(
                f"there is no file {self._path}",
                code="parquet.missing",
                place=self._resolved,
                fix="create it, or correct the setting path",
            )
        return listed_whole([found] if wanted is None or wanted(found.name) else [])


class _Folder:
    """Scans of one folder or glob."""

    def __init__(self, path: str, root: str) -> None:
        self._entries, self._fixed = FolderEntries(path, root), _fixed(path, root)
        self._turns, self._shared = EntryTurns(), _SharedInodes()
        self._is_first = True

    def files(self, wanted: Wanted, finished: FinishedParquets, known: Collection[str]) -> Listed:
        """Return the wanted files: of the finished ones, if many, those whose turn it is; and the first new ones."""
        entries, settled = self._turned(self._entries.newest(), finished, known)

        def may_be_known(entry: FolderEntry) -> bool:
            # a link may lead to a known file
            return not entry[1] or (name := self._name(entry[0])) in known or finished.has(name)

        if wanted is not None:
            entries = [entry for entry in entries if wanted(self._name(entry[0]))]
        examined = ExaminedEntries(entries, may_be_known)
        files = [self._named(found) for found in examined.files]
        idents = {found.ident for found in files}

        def is_once(_: FolderEntry, found: FoundFile) -> bool:
            is_new = found.ident not in idents
            idents.add(found.ident)
            return is_new

        return Listed(files, settled, lambda new: map(self._named, examined.in_order(new, is_once)))

    def _turned(
        self, entries: list[FolderEntry], finished: FinishedParquets, known: Collection[str]
    ) -> tuple[list[FolderEntry], set[int]]:
        """Return the entries to examine, and the numbers of the finished files whose turn it is not."""
        if not finished.rows:
            return entries, set()
        shared = self._shared.of(entries) if self._entries.is_flat else frozenset[int]()

        def number_of(entry: FolderEntry) -> int | None:
            path, inode = entry
            # which name of a file with two names is listed depends on both
            row = finished.only(self._name(path), inode) if inode and inode not in shared else None
            return row.number if row is not None and row.name not in known else None

        active = {row.number for name in known for row in finished.at(name)}
        sorted_ = self._turns.sort(entries, finished, active, number_of)
        turn = sorted_.settled if self._is_first else self._turns.turn(sorted_)
        self._is_first = False
        if len(turn) == len(sorted_.settled):
            return entries, set()
        return sorted_.at(turn), sorted_.numbers - {number for _, number in turn}

    def _named(self, found: FoundFile) -> FoundFile:
        name = self._name(found.url)
        return found if name == found.name else found._replace(name=name)

    def _name(self, path: str) -> str:
        # two folders of a glob may have files with the same name
        return path.rpartition("/")[2] if self._entries.is_flat else os.path.relpath(path, self._fixed)


class _SharedInodes:
    """Inodes shared by several entries of a folder, possibly through a symbolic link."""

    def __init__(self) -> None:
        self._entries: list[FolderEntry] | None = None
        self._shared = frozenset[int]()

    def of(self, entries: list[FolderEntry]) -> frozenset[int]:
        """Return the shared inodes of the entries."""
        if entries is not self._entries:
            counts = Counter(inode or _linked(path) for path, inode in entries)
            self._entries, self._shared = entries, frozenset(inode for inode, n in counts.items() if n > 1)
        return self._shared


def _linked(path: str) -> int:
    try:
        return os.stat(path).st_ino  # noqa: PTH116  # a folder may have a hundred thousand
    except OSError:
        return 0


def _fixed(path: str, root: str) -> Path:
    """Return the part of a path before its first glob pattern, as a folder."""
    parts = Path(path.removeprefix("file://")).parts
    many = next((place for place, part in enumerate(parts) if GLOB & set(part)), len(parts))
    return Path(root, *parts[:many])
