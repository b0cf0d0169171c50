"""Which file on the disk is a tracked one: the same file, or a copy of it, with the part already read unchanged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from conduit_dagster.connectors.file.listing import FoundFile, TrackedFile
from conduit_dagster.connectors.file.opened import OpenFile, open_found

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
