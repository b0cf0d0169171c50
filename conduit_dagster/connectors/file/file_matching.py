"""Which file on the disk is a tracked one: the same file, or a copy of it, with the part already read unchanged.

A copy holds the rest of a file that was compressed, or copied and truncated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from conduit_dagster.connectors.file.file_state import FoundFile, TrackedFile
from conduit_dagster.connectors.file.listing import examine
from conduit_dagster.connectors.file.opened import OpenFile, open_found
from conduit_dagster.connectors.file.packed import is_packed
from conduit_dagster.recovery.errors import FatalError

Places = dict[int | str, list[FoundFile]]
"""Existing files, by inode if available, otherwise by name."""
KnownFile = tuple[TrackedFile, FoundFile]
"""A file as recorded in the position, and in its current state."""


class Match(NamedTuple):
    """A tracked file and its current place."""

    file: TrackedFile
    """With the identity of the copy, if the place is one."""
    found: FoundFile
    lost: bool
    """Whether bytes that were seen but not read are missing from it."""


class FileMatches:
    """Matches of one source's files. Caches them: a file that has not changed since is not opened again."""

    def __init__(self) -> None:
        self._recognised: dict[int, Match] = {}

    def match(self, file: TrackedFile, places: Iterable[FoundFile]) -> Match | None:
        """Return the current place of a tracked file, if the part already read is unchanged."""
        known = self._recognised.get(file.number)
        for found in places:
            if known is not None and known.file == file and known.found == found:
                return known
            if file.may_be(found) and found.size >= file.offset and (match := _recognise(file, found)):
                self._recognised[file.number] = match
                return match
        return None

    def copied(self, file: TrackedFile, copies: Iterable[FoundFile]) -> Match | None:
        """Return the copy that has the part already read of a tracked file."""
        return next((match for found in copies if (match := self.match(file.at(found), (found,)))), None)


def open_tracked(found: FoundFile, file: TrackedFile) -> OpenFile | None:
    """Open the found file if it is the tracked one and the part already read is unchanged; otherwise return None."""
    opened = open_found(found)
    if opened is None or opened.holds(file):
        return opened
    opened.close()
    return None


def _recognise(file: TrackedFile, found: FoundFile) -> Match | None:
    opened = open_tracked(found, file)
    if opened is None:
        return None
    with opened:
        # the name now belongs to another file, which was not examined
        if opened.found.ident != found.ident:
            return None
        return Match(file, found, opened.lost(file))


def slot_of(file: TrackedFile | FoundFile) -> int | str:
    """Return the inode of a file, or its name if it has none."""
    return file.inode or file.name


def by_slot(listed: Iterable[FoundFile], wanted: Iterable[TrackedFile] | None = None) -> Places:
    """Return the listed files by slot; if ``wanted`` is given, only those in its slots."""
    slots = None if wanted is None else {slot_of(file) for file in wanted}
    places: Places = {}
    for found in listed:
        slot = slot_of(found)
        if slots is None or slot in slots:
            places.setdefault(slot, []).append(found)
    return places


_SECOND: Final = 1_000_000_000
_sizes: dict[tuple[int, int, int], tuple[int, bool]] = {}
"""Size of the content of a file with the suffix of a compressed one, and whether it is compressed."""
_MOST_SIZES: Final = 10_000


class Copies(NamedTuple):
    """Siblings of some files, the oldest change first."""

    readable: list[FoundFile]
    unreadable: list[FoundFile]
    """Siblings that can't be opened or decompressed."""
    one_family: bool = True
    """Whether all are siblings of one path; otherwise a file's siblings are those with its name."""

    def of(self, file: TrackedFile, taken: Collection[str] = ()) -> list[FoundFile]:
        """Return the possible copies of a file, by their times, without those whose idents are ``taken``.

        None for a file of which nothing was read or planned: no content would show that it is a copy.
        """
        possible = self.readable if file.offset or file.ahead else []
        return [found for found in possible if found.modified >= _second(file) and found.ident not in taken]

    def require_readable(self, files: Iterable[TrackedFile]) -> None:
        """Raise ``FatalError`` (``file.compressed``) if the rest of one of these files may be in an unreadable copy."""
        for file in files:
            begins = "" if self.one_family else (f"{file.name}.", f"{file.name}-")
            unreadable = (found for found in self.unreadable if found.name.startswith(begins))
            if later := [found for found in unreadable if found.modified > file.modified]:
                raise FatalError(
                    f"{file.name}, read up to byte {file.offset}, is gone; {later[0].name}, which changed since, may"
                    " hold the rest of it, and can't be read",
                    code="file.compressed",
                    place=later[0].url,
                    fix="decompress it in its folder, so that its name loses only the suffix, and let it be readable;"
                    " or set on-gone: skip to lose the rest",
                )


NO_COPIES: Final = Copies([], [])


def _second(file: TrackedFile) -> int:
    # some tools copy only the seconds of a file's time
    return file.modified // _SECOND * _SECOND


class FileCopies:
    """Siblings ``NAME.*`` and ``NAME-*`` of a source's files."""

    def __init__(self, path: str, many: bool, homes: Callable[[Collection[TrackedFile]], set[str]]) -> None:
        """``homes``: returns the folders in which files of the source may be."""
        self._name, self._homes = "" if many else path.rsplit("/", 1)[-1], homes

    def of(self, files: Collection[TrackedFile]) -> Copies:
        """Return the siblings that may be copies of these files, as they are now: no older than the files."""
        return self._changed_since(files, min(map(_second, files), default=0))

    def packed_since(self, last: TrackedFile) -> list[FoundFile]:
        """Return the compressed siblings that changed since the last observation of a file."""
        # a birth time says nothing: a copy is younger than its content
        return [found for found in self._changed_since([last], last.modified).readable if found.unpacked]

    def _changed_since(self, files: Collection[TrackedFile], modified: int) -> Copies:
        copies = Copies([], [], bool(self._name))
        for path in self._siblings(files) if files else ():
            seen = examine(path)
            if seen is None or seen.modified < modified:
                continue
            found = examine_content(path) if os.access(path, os.R_OK) else None
            (copies.readable if found is not None else copies.unreadable).append(found or seen)
        for some in (copies.readable, copies.unreadable):
            some.sort(key=lambda one: (one.modified, one.name))
        return copies

    def _siblings(self, files: Collection[TrackedFile]) -> Iterator[str]:
        names = {self._name} if self._name else {file.name for file in files}
        listed = {home: _names(home) for home in {os.path.realpath(home) for home in self._homes(files)}}
        # behind a link it is the target that is rotated
        links = [f"{home}/{name}" for home, found in listed.items() for name in names & found.links]
        names |= {os.path.realpath(link).rpartition("/")[2] for link in links}
        for home, found in listed.items():
            for name in found.files:
                # a compressed file beside its original is not finished
                is_begun = is_packed(name) and name.rpartition(".")[0] in found.files
                if not is_begun and any(name[:i] in names for i, mark in enumerate(name) if mark in ".-"):
                    yield f"{home}/{name}"


class _Names(NamedTuple):
    """Names in a folder."""

    files: set[str]
    links: set[str]


def _names(folder: str) -> _Names:
    names = _Names(set(), set())
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                names.links.add(entry.name)
            elif entry.is_file():
                names.files.add(entry.name)
    return names


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
