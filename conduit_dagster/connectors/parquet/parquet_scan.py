"""Scan of a source's Parquet files."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from conduit_dagster.connectors.file.file_state import FoundFile
from conduit_dagster.connectors.file.listing import examine
from conduit_dagster.connectors.parquet.footer import Footer, read_footer, row_count
from conduit_dagster.connectors.parquet.parquet_folder import Listed, Listing, Wanted
from conduit_dagster.connectors.parquet.parquet_position import (
    NO_PARQUETS,
    FinishedParquets,
    ParquetPosition,
    ParquetStates,
    ReadFile,
    finished_row,
)
from conduit_dagster.recovery.errors import FatalError, from_os_error

_KEPT = 10_000
"""Limit of cached footers, above which those of missing files are dropped; and of cached paths."""
_COUNTED = 100_000
"""Limit of cached row counts."""
There = dict[tuple[str, str], tuple[FoundFile, Footer]]
"""Existing files by name and mark, with the state in which their footers were read; in reading order."""


class UnreadFiles(NamedTuple):
    """Unread files after a position."""

    still: ParquetPosition
    """The position without files that it need not name any more: fully read, and either missing or followed by another.
    """
    unread: Iterator[tuple[ReadFile, Footer]]
    """Files with rows after the position: partly read ones first, then new ones by name. Each is read lazily."""
    states: ParquetStates
    """Scan results for the other files."""


class _Looked(NamedTuple):
    """The parts of :class:`UnreadFiles`."""

    still: ParquetPosition
    older: list[tuple[ReadFile, Footer]]
    within: Iterator[FoundFile]
    """Existing files in reading order, with known ones among them."""
    there: There
    """Those of them that the position or its lists know by name, and partly read ones."""
    known: set[tuple[str, str]]
    states: ParquetStates


class ParquetScan:
    """Scan of the files of one source. Reads each file's footer once."""

    def __init__(self, listing: Listing, place: str) -> None:
        """``place``: location of the files, for error messages."""
        self._listing, self._place = listing, place
        self._footers: dict[FoundFile, tuple[FoundFile, Footer]] = {}
        self._counts: dict[FoundFile, int] = {}
        self._places: dict[str, str] = {}
        """Paths of files to be read, by name."""

    @property
    def is_ordered(self) -> bool:
        """Whether a position names only the last file, because each new file's name sorts after all others."""
        return self._listing.ordered

    def _listed(self, wanted: Wanted, finished: FinishedParquets, known: Collection[str]) -> Listed:
        """Return the existing files whose names are wanted."""
        try:
            return self._listing.files(wanted, finished, known)
        except OSError as error:
            raise from_os_error(error, f"can't read {self._place}") from error

    def require_readable(self) -> None:
        """Raise if the footer of one of the files can't be read."""
        for found in self._every():
            read_footer(found.url)

    def _every(self, wanted: Wanted = None) -> Iterator[FoundFile]:
        """Yield the existing files whose names are wanted, in reading order."""
        listed = self._listed(wanted, NO_PARQUETS, ())
        return self._in_order(listed, listed.files)

    def _in_order(self, listed: Listed, files: list[FoundFile]) -> Iterator[FoundFile]:
        """Yield these of the listed files, and those that were not examined yet."""
        try:
            yield from listed.in_order(files)
        except OSError as error:
            raise from_os_error(error, f"can't read {self._place}") from error

    def _forget_footers(self, listed: list[FoundFile]) -> None:
        if len(self._footers) > _KEPT:
            self._footers = {found: self._footers[found] for found in listed if found in self._footers}

    def _read(self, files: Iterable[FoundFile]) -> There:
        """Return the files with their footers. Raises if one of them can't be read."""
        read = [(found.name, self._footer(found)) for found in files]
        return {(name, footer.mark): (opened._replace(name=name), footer) for name, (opened, footer) in read}

    def _footer(self, found: FoundFile) -> tuple[FoundFile, Footer]:
        """Return the file now at a path and its footer: the path may refer to another file since it was listed."""
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
        """Return the existing files with these names. Lists all files only if one is not at its last location."""
        there = self._where_found(names)
        return self._read(self._every(set(names).__contains__)) if there is None else there

    def _where_found(self, names: Collection[str]) -> There | None:
        found = list[FoundFile]()
        try:
            for name in names:
                place = self._places.get(name)
                file = examine(place) if place is not None else None
                if file is None:
                    return None
                found.append(file._replace(name=name))
        except OSError as error:
            raise from_os_error(error, f"can't read {self._place}") from error
        return self._read(found)

    def horizon(self) -> Any:
        """Return the files that exist now, for :meth:`look`. Opens none of them."""
        listed = list(self._every())
        self._listing.forget()
        if self._listing.ordered:
            return {"last": max((found.name for found in listed), default="")}
        return {"files": {found.name: _state(found) for found in listed}}

    def look(
        self, position: ParquetPosition, horizon: Any = None, finished: FinishedParquets = NO_PARQUETS
    ) -> UnreadFiles:
        """Return the unread files after a position; if ``horizon`` is given, only those within it.

        ``finished``: the files in the position's lists. Raises ``FatalError`` if a partly read file is missing or was
        replaced. The footers of new files are read lazily, which may raise.
        """
        found = self._look(position, horizon, finished)
        fresh = self._fresh(found.within, found.there, found.known, position.seen)
        return UnreadFiles(found.still, chain(found.older, fresh), found.states)

    def unread_rows(self, position: ParquetPosition, finished: FinishedParquets) -> int:
        """Return the number of rows of :meth:`look`. Of new files only the footer is read, and its count cached."""
        looked = self._look(position, None, finished)
        rows = sum(file.rows - file.done for file, _ in looked.older)
        read = {name: (mark, footer.rows) for (name, mark), (_, footer) in looked.there.items()}
        counts: dict[FoundFile, int] = {}
        for found in looked.within:
            if found.name not in read:
                counts[found] = self._count(found)
                rows += counts[found]
            elif (found.name, read[found.name][0]) not in looked.known:
                rows += read[found.name][1]
        self._counts = counts if len(counts) <= _COUNTED else {}
        return rows

    def _count(self, found: FoundFile) -> int:
        if found in self._footers:
            return self._footers[found][1].rows
        # a file that may change, without a modification time, is read each time
        cached = self._counts.get(found) if found.modified or self._listing.ordered else None
        return row_count(found.url) if cached is None else cached

    def _look(self, position: ParquetPosition, horizon: Any, finished: FinishedParquets) -> _Looked:
        ordered = self._listing.ordered
        begun = [file for file in position.files if file.done < file.rows]
        last = position.files[-1].name if ordered and position.files else ""
        unread, names = {file.name for file in begun}, {file.name for file in position.files}
        listed = self._listed((lambda name: name > last or name in unread) if last else None, finished, names)
        self._forget_footers(listed.files)
        left, settled = _settled(listed, finished)
        there = self._read(found for found in left if found.name in names or finished.has(found.name))
        for file in begun:
            if file.ident not in there:
                raise self.gone(file)
        states = _states(position, there, finished, settled)
        newest = position.files[-1:] if ordered else ()
        kept = [f for f in position.files if f in newest or f.done < f.rows or (not ordered and f.ident in there)]
        still = msgspec.structs.replace(position, files=tuple(kept))
        known = {file.ident for file in position.files} | {(row.name, row.mark) for row in states.changed}
        within = (found for found in self._in_order(listed, left) if _is_within(found, horizon))
        # a partly read file existed before the horizon, or was within it
        older = [(file, there[file.ident][1]) for file in begun]
        # a step in flight needs those of its own files
        self._places = dict(list(self._places.items())[-_KEPT:])
        self._places.update((found.name, found.url) for found, _ in there.values() if found.inode)
        return _Looked(still, older, within, there, known, states)

    def _fresh(
        self, files: Iterable[FoundFile], there: There, known: Container[tuple[str, str]], number: int
    ) -> Iterator[tuple[ReadFile, Footer]]:
        """Yield the files that are not ``known``, numbered from ``number``; ``there``: those whose footers are read."""
        read = {name: footer for (name, _), (_, footer) in there.items()}
        for found in files:
            footer = read.get(found.name) or self._footer(found)[1]
            if (found.name, footer.mark) not in known:
                if found.inode:
                    self._places[found.name] = found.url
                yield ReadFile(found.name, footer.mark, number, footer.rows), footer
                number += 1

    def gone(self, file: ReadFile) -> FatalError:
        """Return the error for a file whose unread rows are missing."""
        return FatalError(
            f"{file.name} is gone or was changed; rows {file.done + 1} to {file.rows} of it were not read",
            code="parquet.range_gone",
            place=self._place,
            fix="put the file back under its name, with the content that it had",
        )


def _settled(listed: Listed, finished: FinishedParquets) -> tuple[list[FoundFile], set[int]]:
    """Return the files that changed since they were finished, and the numbers of unchanged ones."""
    left, settled = list[FoundFile](), listed.settled
    for found in listed.files:
        row = finished.settled(found)
        if row is None:
            left.append(found)
        else:
            settled.add(row.number)
    return left, settled


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
    states.missing.extend(sorted(finished.rows.keys() - still))
    return states


def _is_within(found: FoundFile, horizon: Any) -> bool:
    if horizon is None:
        return True
    return found.name <= horizon["last"] if "last" in horizon else horizon["files"].get(found.name) == _state(found)


def _state(found: FoundFile) -> tuple[int, int, int]:
    """Return the state that distinguishes a file from a replacement under its name; for a remote file only its size."""
    return found.inode, found.size, found.modified
