"""Files of a path to Parquet files. Of a large folder, files that were read completely are examined in turns."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from conduit_dagster.connectors.file.folder_look import EXAMINED_AT_ONCE
from conduit_dagster.connectors.file.listing import FolderEntries, FolderEntry, FoundFile, examine, is_many, look
from conduit_dagster.connectors.file.settings import GLOB
from conduit_dagster.connectors.parquet.finished_parquet import FinishedParquets
from conduit_dagster.recovery.errors import TransientError

Wanted = Callable[[str], bool]
"""Whether a file with this name is to be listed."""


class Listed(NamedTuple):
    """What a listing found."""

    files: list[FoundFile]
    """Files that were examined, in reading order."""
    settled: frozenset[int] = frozenset()
    """Numbers of the finished files that were not: an entry with the same name and inode is there."""


class Listing(Protocol):
    """Listing of a source's files."""

    ordered: bool
    """Whether each new file's name sorts after all others, so that the last name read tells what was read."""

    def files(self, wanted: Wanted, finished: FinishedParquets) -> Listed:
        """Return the existing files that are wanted. May raise ``OSError`` or a ``ConduitError``.

        ``finished`` ones need not be examined.
        """
        ...

    def forget(self) -> None:
        """Examine all files at the next look."""


class ListedFiles:
    """Listing of a path's files by name, without hidden ones."""

    ordered = False

    def __init__(self, path: str, resolved: str, root: str) -> None:
        """``path`` as written, ``resolved`` against the project's ``root``."""
        self._path, self._resolved, self._root = path, resolved, root
        self._folder: _Folder | None = None

    def forget(self) -> None:
        """Examine all files at the next look."""
        self._folder = None

    def files(self, wanted: Wanted, finished: FinishedParquets) -> Listed:
        """Return the wanted files. Raises ``TransientError`` if the path names one file and that is missing.

        A file of a folder that has two names, such as a link to the newest one, is listed once.
        """
        # checked on every call: a folder may appear later
        if is_many(self._path, self._root):
            self._folder = self._folder or _Folder(self._path, self._root)
            return self._folder.files(wanted, finished)
        found = look(self._resolved, self._resolved.rsplit("/", 1)[-1])
        if found is None:
            raise TransientError(
                f"there is no file {self._path}",
                code="parquet.missing",
                place=self._resolved,
                fix="create it, or correct the setting path",
            )
        return Listed([found] if wanted(found.name) else [])


class _Sorted(NamedTuple):
    """Places of a folder's entries, by whether they are finished files as far as their inodes tell."""

    entries: list[FolderEntry]
    finished: FinishedParquets
    settled: list[tuple[int, int]]
    """Place and number."""
    others: list[int]


class _Folder:
    """Looks at one folder or glob."""

    def __init__(self, path: str, root: str) -> None:
        self._entries, self._fixed = FolderEntries(path, root), _fixed(path, root)
        self._sorted: _Sorted | None = None
        self._turn: int | None = None
        """None: all files are examined at the next look."""

    def files(self, wanted: Wanted, finished: FinishedParquets) -> Listed:
        """Return the wanted files; finished ones in turns, if there are many."""
        entries = self._entries.newest()
        left, settled = self._turned(entries, finished) if finished.rows else (entries, frozenset[int]())
        found: dict[str, FoundFile] = {}
        for path, inode in left:
            name = self._name(path, inode)
            if wanted(name) and (file := examine(path)) is not None:
                found.setdefault(file.ident, file._replace(name=name))
        return Listed(list(found.values()), settled)

    def _name(self, path: str, inode: int) -> str:
        # two folders of a glob, whose entries have no inodes, may have files with the same name
        return path.rpartition("/")[2] if inode else os.path.relpath(path, self._fixed)

    def _turned(
        self, entries: list[FolderEntry], finished: FinishedParquets
    ) -> tuple[Sequence[FolderEntry], frozenset[int]]:
        """Return the entries to examine, and the numbers of the finished files whose turn it is not."""
        known = self._sort(entries, finished)
        settled, begin = known.settled, self._turn
        self._turn = 0 if begin is None or begin >= len(settled) else begin + EXAMINED_AT_ONCE
        if begin is None or len(settled) <= EXAMINED_AT_ONCE:
            return entries, frozenset()
        turn = slice(begin, begin + EXAMINED_AT_ONCE)
        places = sorted([*known.others, *(place for place, _ in settled[turn])])
        rest = frozenset(number for _, number in (*settled[:begin], *settled[turn.stop :]))
        return [entries[place] for place in places], rest

    def _sort(self, entries: list[FolderEntry], finished: FinishedParquets) -> _Sorted:
        known = self._sorted
        if known is not None and known.entries is entries and known.finished is finished:
            return known
        # of a file with two names it depends on both which of them is listed
        names = Counter(inode for _, inode in entries)
        settled, others = list[tuple[int, int]](), list[int]()
        for place, (path, inode) in enumerate(entries):
            row = finished.only(path.rpartition("/")[2], inode) if inode and names[inode] == 1 else None
            if row is None:
                others.append(place)
            else:
                settled.append((place, row.number))
        self._sorted = _Sorted(entries, finished, settled, others)
        return self._sorted


def _fixed(path: str, root: str) -> Path:
    """Return the part of a path before its first glob pattern, as a folder."""
    parts = Path(path.removeprefix("file://")).parts
    many = next((place for place, part in enumerate(parts) if GLOB & set(part)), len(parts))
    return Path(root, *parts[:many])
