"""Where a tracked file is now: at its place, renamed, or in a copy, with the part already read unchanged.

A copy holds the rest of a file that was compressed, or copied and truncated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from conduit_dagster import storage
from conduit_dagster.connectors.file.file_position import FinishedFiles
from conduit_dagster.connectors.file.file_state import FoundFile, TrackedFile
from conduit_dagster.connectors.file.listing import FolderEntry, examine, examine_content
from conduit_dagster.connectors.file.open_file import OpenFile, is_packed, open_tracked
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


_MOST: Final = 10_000
"""Number of files whose place is kept, besides those of the newest scans."""


class LastPlaces:
    """The last observed place of each tracked file."""

    def __init__(self, roots: Callable[[], set[str]]) -> None:
        """``roots``: returns the folders of the source's path, and those that its links lead to."""
        self._roots = roots
        self._found: dict[int, FoundFile] = {}
        """By number, the least recently seen first."""

    def seen(self, file: TrackedFile, found: FoundFile) -> None:
        """Keep where the file is now."""
        self._found.pop(file.number, None)
        self._found[file.number] = found

    def forget_oldest(self, needed: int) -> None:
        """Forget the oldest places beyond the limit: a step in flight needs the ``needed`` ones of its own files."""
        if len(self._found) > _MOST + 2 * needed:
            self._found = dict(list(self._found.items())[-_MOST:])

    def of(self, file: TrackedFile) -> list[FoundFile]:
        """Return where the last scan found the file; empty if it did not."""
        found = self._found.get(file.number)
        return [] if found is None or not file.may_be(found) else [found]

    def strayed(self, files: Collection[TrackedFile]) -> list[FoundFile]:
        """Return these files where a rename took them: out of the glob, or beside the file that a link leads to."""
        wanted, found = {file.inode for file in files if file.inode and _is_knowable(file)}, list[FoundFile]()
        for folder in self.homes(files) if wanted else ():
            try:
                with os.scandir(folder) as entries:
                    mine = (one for one in entries if one.inode() in wanted)
                    paths = [one.path for one in mine if one.is_file(follow_symlinks=False)]
            except OSError:
                continue
            found.extend(file for path in paths if (file := examine_content(path)) is not None)
        return found

    def homes(self, files: Collection[TrackedFile]) -> set[str]:
        """Return the folders in which these files may be."""
        last = (self._found[file.number].url for file in files if file.number in self._found)
        return self._roots().union(*(homes_of(path) for path in last))


def _is_knowable(file: TrackedFile) -> bool:
    """Return whether its birth time or its content tells the file from another one that was given its inode."""
    return bool(file.birth or file.offset or file.ahead)


def homes_of(path: str) -> set[str]:
    """Return the folder of a file, and that of the file that it leads to if it is a link; empty for a remote one."""
    if not storage.is_local(path):
        return set()
    return {str(Path(place).parent) for place in (path, os.path.realpath(path))}


class FileFinder:
    """Opener of tracked files under their current names. Lists the files only if one is not at its last location."""

    def __init__(self, last: LastPlaces, copies: FileCopies, files: Callable[[], list[FoundFile]]) -> None:
        """``files`` lists the existing files of the source."""
        self._last, self._copies, self._files = last, copies, files
        self._places: Places | None = None

    def open(self, file: TrackedFile) -> OpenFile | None:
        """Open a tracked file; None if it is missing or the part already read has changed.

        Metadata and data both come from the descriptor: the name is resolved only once.
        """
        opened = open_one(file, self._last.of(file))
        if opened is None and self._places is not None:
            opened = open_one(file, self._places.get(slot_of(file), ()))
        if opened is None:
            # it may have been renamed since the last listing
            self._places = by_slot([*self._last.strayed([file]), *self._files()])
            opened = open_one(file, self._places.get(slot_of(file), ()))
        if opened is None:
            copies = self._copies.of([file]).of(file)
            opened = next((copy for found in copies if (copy := open_tracked(found, file.at(found)))), None)
        return opened


def open_one(file: TrackedFile, places: Iterable[FoundFile]) -> OpenFile | None:
    """Open a tracked file at one of these places; None if it is at none of them, or its read part has changed."""
    for found in places:
        if (opened := open_tracked(found, file)) is not None:
            return opened
    return None


_ATTEMPTS: Final = 2
"""Number of times that a file is sought: one that is being renamed may be missed once."""


class ListedStrays:
    """Files of the lists that are not, or no longer whole, among the entries of one folder or glob."""

    def __init__(self, matches: FileMatches, places: LastPlaces, copies: FileCopies) -> None:
        self._matches, self._places, self._copies = matches, places, copies
        self._sought: tuple[list[FolderEntry] | None, FinishedFiles | None, set[int]] = None, None, set()
        """What the files were sought with; with the same, they are where they were."""
        self._found: list[KnownFile] = []
        self._vain: dict[int, int] = {}
        """By number of a file: how often it was sought in vain."""

    def unread(self, entries: list[FolderEntry], finished: FinishedFiles, replaced: set[int]) -> list[KnownFile]:
        """Return those with unread lines, where they are now. They are sought again if something has changed.

        ``replaced``: numbers of files of the lists whose inode has other content.
        """
        before, lists, gone = self._sought
        if entries is not before or finished is not lists or replaced != gone:
            inodes = {inode for _, inode in entries}
            rows = finished.rows.values()
            self._found = self._seek([row for row in rows if row.inode not in inodes or row.number in replaced])
            self._sought = entries, finished, replaced
        found = ((file, examine_content(seen.url)) for file, seen in self._found)
        return [(file, seen) for file, seen in found if seen is not None and file.may_be(seen)]

    def _seek(self, absent: list[TrackedFile]) -> list[KnownFile]:
        vain = self._vain
        wanted = [row for row in absent if vain.get(row.number, 0) < _ATTEMPTS]
        found = self._matching(wanted) if wanted else {}
        missed = {row.number for row in wanted} - found.keys()
        self._vain = {row.number: vain.get(row.number, 0) + (row.number in missed) for row in absent}
        return [(match.file, match.found) for match in found.values() if match.found.size > match.file.offset]

    def _matching(self, wanted: list[TrackedFile]) -> dict[int, Match]:
        """Return the places of the existing files, by number."""
        places, copies = by_slot(self._places.strayed(wanted), wanted), self._copies.of(wanted)
        found = dict[int, Match]()
        for file in wanted:
            match = self._matches.match(file, places.get(slot_of(file), ()))
            if match := match or self._matches.copied(file, copies.of(file)):
                found[file.number] = match
        return found
