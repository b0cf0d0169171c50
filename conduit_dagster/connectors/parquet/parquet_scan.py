"""Survey of a source's Parquet files."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from conduit_dagster.connectors.file.listing import FoundFile, is_many, list_many, look
from conduit_dagster.connectors.file.settings import GLOB
from conduit_dagster.connectors.parquet.finished_parquet import (
    NO_PARQUETS,
    FinishedParquets,
    ParquetStates,
    finished_row,
)
from conduit_dagster.connectors.parquet.footer import Footer, read_footer
from conduit_dagster.connectors.parquet.parquet_position import ParquetPosition, ReadFile
from conduit_dagster.recovery.errors import FatalError, TransientError, from_os_error


def _fixed(path: str, root: str) -> Path:
    """Return the part of a path before its first glob pattern, as a folder."""
    parts = Path(path.removeprefix("file://")).parts
    many = next((place for place, part in enumerate(parts) if GLOB & set(part)), len(parts))
    return Path(root, *parts[:many])


class ListedFiles:
    """Listing of a path's files by name, without hidden ones."""

    ordered = False

    def __init__(self, path: str, resolved: str, root: str) -> None:
        """``path`` as written, ``resolved`` against the project's ``root``."""
        self._path, self._resolved, self._root = path, resolved, root

    def files(self) -> list[FoundFile]:
        """Return all existing files. Raises ``TransientError`` if the path names one file and that is missing."""
        # checked on every call: a folder may appear later
        if is_many(self._path, self._root):
            fixed = _fixed(self._path, self._root)
            # two folders of a glob may have files with the same name
            return [
                found._replace(name=os.path.relpath(found.url, fixed)) for found in list_many(self._path, self._root)
            ]
        found = look(self._resolved, self._resolved.rsplit("/", 1)[-1])
        if found is None:
            raise TransientError(
                f"there is no file {self._path}",
                code="parquet.missing",
                place=self._resolved,
                fix="create it, or correct the setting path",
            )
        return [found]


_KEPT = 10_000
"""Number of cached footers above which those of files that are gone are dropped."""
There = dict[tuple[str, str], tuple[FoundFile, Footer]]
"""Existing files by name and mark, each as it was when its footer was read; in reading order."""


class Listing(Protocol):
    """Listing of a source's files."""

    ordered: bool
    """Whether each new file's name sorts after all others, so that the last name read tells what was read."""

    def files(self) -> list[FoundFile]:
        """Return all existing files in reading order. May raise ``OSError`` or a ``ConduitError``."""
        ...


class UnreadFiles(NamedTuple):
    """Unread files after a position."""

    still: ParquetPosition
    """The position without files that it need not name any more: fully read, and gone or followed by another one."""
    unread: list[tuple[ReadFile, Footer]]
    """Files with rows after the position: partly read ones first, then new ones by name."""
    states: ParquetStates
    """What was found of the other files."""


class ParquetScan:
    """Survey of the files of one source. Reads each file's footer once."""

    def __init__(self, listing: Listing, place: str) -> None:
        """``place``: location of the files, for error messages."""
        self._listing, self._place = listing, place
        self._footers: dict[FoundFile, tuple[FoundFile, Footer]] = {}

    @property
    def is_ordered(self) -> bool:
        """Whether a position names only the last file, as each new file's name sorts after all others."""
        return self._listing.ordered

    def _files(self, wanted: Callable[[str], bool]) -> There:
        """Return the existing files whose names are wanted, in reading order. Raises if one of them can't be read."""
        return self._unsettled(wanted, NO_PARQUETS, set())

    def _unsettled(self, wanted: Callable[[str], bool], finished: FinishedParquets, settled: set[int]) -> There:
        """Return the wanted files without those that are as they were when they were finished.

        Their numbers are added to ``settled``; their footers are not read.
        """
        there: There = {}
        try:
            listed = self._listing.files()
            if len(self._footers) > _KEPT:
                self._footers = {found: self._footers[found] for found in listed if found in self._footers}
            for found in listed:
                if not wanted(found.name):
                    continue
                row = finished.settled(found)
                if row is not None:
                    settled.add(row.number)
                    self._footers.pop(found, None)
                    continue
                opened, footer = self._footer(found)
                there[found.name, footer.mark] = opened, footer
        except OSError as error:
            raise from_os_error(error, f"can't read {self._place}") from error
        return there

    def _footer(self, found: FoundFile) -> tuple[FoundFile, Footer]:
        """Return the file now at a path and its footer: another file may have the path since it was listed."""
        known = self._footers.get(found)
        if known is None:
            opened, footer = known = read_footer(found.url)
            # a file that may change, without a modification time, is read each time
            if self._listing.ordered:
                self._footers[found] = known
            elif opened.modified:
                self._footers[opened._replace(name=found.name)] = opened, footer
        return known

    def named(self, names: Collection[str]) -> There:
        """Return the existing files with these names."""
        return self._files(set(names).__contains__)

    def horizon(self) -> Any:
        """Return the files that exist now, for :meth:`look`. Opens none of them."""
        try:
            listed = self._listing.files()
        except OSError as error:
            raise from_os_error(error, f"can't read {self._place}") from error
        if self._listing.ordered:
            return {"last": max((found.name for found in listed), default="")}
        return {"files": {found.name: _state(found) for found in listed}}

    def look(
        self, position: ParquetPosition, horizon: Any = None, finished: FinishedParquets = NO_PARQUETS
    ) -> UnreadFiles:
        """Return the unread files after a position; only those of the ``horizon``, if that is given.

        ``finished``: the files in the position's lists. Raises ``FatalError`` if a partly read file is gone or was
        replaced.
        """
        ordered = self._listing.ordered
        begun = [file for file in position.files if file.done < file.rows]
        last = position.files[-1].name if ordered and position.files else ""
        names, settled = {file.name for file in begun}, set[int]()
        there = self._unsettled(lambda name: name > last or name in names, finished, settled)
        for file in begun:
            if file.ident not in there:
                raise self.gone(file)
        known = {file.ident for file in position.files}
        states = _states(position, there, finished, settled)
        known |= {(row.name, row.mark) for row in states.changed}
        fresh = [ident for ident in there if ident not in known]
        new = [ReadFile(*ident, position.seen + i, there[ident][1].rows) for i, ident in enumerate(fresh)]
        unread = [
            (file, there[file.ident][1]) for file in (*begun, *new) if _is_within(file, there[file.ident][0], horizon)
        ]
        newest = position.files[-1:] if ordered else ()
        kept = [f for f in position.files if f in newest or f.done < f.rows or (not ordered and f.ident in there)]
        return UnreadFiles(ParquetPosition(position.seen, tuple(kept), position.read), unread, states)

    def gone(self, file: ReadFile) -> FatalError:
        """Return the error for a file whose unread rows are gone."""
        return FatalError(
            f"{file.name} is gone or was changed; rows {file.done + 1} to {file.rows} of it were not read",
            code="parquet.range_gone",
            place=self._place,
            fix="put the file back under its name, with the content that it had",
        )


def _states(position: ParquetPosition, there: There, finished: FinishedParquets, settled: set[int]) -> ParquetStates:
    states = ParquetStates()
    for file in position.files:
        if file.ident in there:
            states.here[file.number] = there[file.ident][0]
        elif file.done == file.rows:
            states.gone.append(file)
    for ident, (opened, _) in there.items():
        if (row := finished.identified(*ident)) is not None:
            states.changed.append(finished_row(row.file, opened))
    still = settled | {row.number for row in states.changed}
    states.missing.extend(number for number in finished.rows if number not in still)
    return states


def _is_within(file: ReadFile, found: FoundFile, horizon: Any) -> bool:
    if horizon is None:
        return True
    return file.name <= horizon["last"] if "last" in horizon else horizon["files"].get(file.name) == _state(found)


def _state(found: FoundFile) -> tuple[int, int, int]:
    """Return what tells a file from one that replaces it under its name; a remote file has only its size."""
    return found.inode, found.size, found.modified
