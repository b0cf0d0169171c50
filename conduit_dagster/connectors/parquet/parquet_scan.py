"""Survey of a source's Parquet files, and its position: how much of each was read."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from conduit_dagster.connectors.file.listing import FoundFile, is_many, list_many, look
from conduit_dagster.connectors.file.settings import GLOB
from conduit_dagster.connectors.parquet.footer import Footer, read_footer
from conduit_dagster.msgspec_warmup import learn
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


class ReadFile(msgspec.Struct, frozen=True):
    """A file, identified by its name and its footer's mark, and the number of its rows before the position."""

    name: str
    mark: str
    number: int
    """Index of the file in the source, from 0."""
    rows: int
    """Number of rows in the whole file."""
    done: int = 0

    @property
    def ident(self) -> tuple[str, str]:
        """Identity of the file: a name that comes back with other content is another file."""
        return self.name, self.mark


class ParquetPosition(msgspec.Struct, frozen=True):
    """Position of a source: every file that still exists and was read at least in part, in reading order."""

    seen: int = 0
    files: tuple[ReadFile, ...] = ()

    def with_files(self, moved: dict[int, ReadFile]) -> ParquetPosition:
        """Return the position with these files in their new states, new ones at the end."""
        kept = [moved.get(file.number, file) for file in self.files]
        known = {file.number for file in self.files}
        fresh = [file for number, file in moved.items() if number not in known]
        return ParquetPosition(max([self.seen, *(file.number + 1 for file in fresh)]), (*kept, *fresh))

    def as_json(self) -> dict[str, Any]:
        """Return the JSON value that the engine stores."""
        return {"seen": self.seen, "files": [msgspec.structs.asdict(file) for file in self.files]}


def parse_position(value: Any) -> ParquetPosition:
    """Return the position from its stored JSON value."""
    return msgspec.convert(value, ParquetPosition)


def parse_file(value: Any) -> ReadFile:
    """Return the file from a split's start or from a boundary."""
    return msgspec.convert(value, ReadFile)


learn(ParquetPosition, ReadFile)


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


class ParquetScan:
    """Survey of the files of one source. Reads each file's footer once."""

    def __init__(self, listing: Listing, place: str) -> None:
        """``place``: location of the files, for error messages."""
        self._listing, self._place = listing, place
        self._footers: dict[FoundFile, tuple[FoundFile, Footer]] = {}

    def _files(self, wanted: Callable[[str], bool]) -> There:
        """Return the existing files whose names are wanted, in reading order. Raises if one of them can't be read."""
        try:
            listed = self._listing.files()
            if len(self._footers) > _KEPT:
                self._footers = {found: self._footers[found] for found in listed if found in self._footers}
            read = [(found.name, self._footer(found)) for found in listed if wanted(found.name)]
            return {(name, footer.mark): (opened, footer) for name, (opened, footer) in read}
        except OSError as error:
            raise from_os_error(error, f"can't read {self._place}") from error

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
        """Return the files that exist now, as a JSON value for :meth:`look`."""
        if self._listing.ordered:
            return {"last": max((found.name for found in self._listing.files()), default="")}
        return {"files": set(self._files(lambda _: True))}

    def look(self, position: ParquetPosition, horizon: Any = None) -> UnreadFiles:
        """Return the unread files after a position; only those of the ``horizon``, if that is given.

        Raises ``FatalError`` if a partly read file is gone or was replaced.
        """
        ordered = self._listing.ordered
        begun = [file for file in position.files if file.done < file.rows]
        last = position.files[-1].name if ordered and position.files else ""
        names = {file.name for file in begun}
        there = self._files(lambda name: name > last or name in names)
        for file in begun:
            if file.ident not in there:
                raise self.gone(file)
        known = {file.ident for file in position.files}
        fresh = [ident for ident in there if ident not in known]
        new = [ReadFile(*ident, position.seen + i, there[ident][1].rows) for i, ident in enumerate(fresh)]
        unread = [(file, there[file.ident][1]) for file in (*begun, *new) if _is_within(file, horizon)]
        newest = position.files[-1:] if ordered else ()
        kept = [f for f in position.files if f in newest or f.done < f.rows or (not ordered and f.ident in there)]
        return UnreadFiles(ParquetPosition(position.seen, tuple(kept)), unread)

    def gone(self, file: ReadFile) -> FatalError:
        """Return the error for a file whose unread rows are gone."""
        return FatalError(
            f"{file.name} is gone or was changed; rows {file.done + 1} to {file.rows} of it were not read",
            code="parquet.range_gone",
            place=self._place,
            fix="put the file back under its name, with the content that it had",
        )


def _is_within(file: ReadFile, horizon: Any) -> bool:
    if horizon is None:
        return True
    return file.name <= horizon["last"] if "last" in horizon else file.ident in horizon["files"]
