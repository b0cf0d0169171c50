"""Scan of a source's files: which of them are known, new, or gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import NamedTuple

from conduit_dagster.connectors.file.file_places import (
    NO_COPIES,
    Copies,
    FileCopies,
    FileMatches,
    KnownFile,
    LastPlaces,
    ListedStrays,
    Match,
    by_slot,
    homes_of,
    open_one,
    slot_of,
)
from conduit_dagster.connectors.file.file_position import FilePosition, FinishedFiles
from conduit_dagster.connectors.file.file_state import FoundFile, Quiet, TrackedFile
from conduit_dagster.connectors.file.folder_scan import FolderLooks
from conduit_dagster.connectors.file.listing import FolderEntries, list_family, list_many
from conduit_dagster.connectors.file.open_file import OpenFile, begin_otherwise
from conduit_dagster.connectors.file.settings import FileSourceSettings
from conduit_dagster.recovery.errors import FatalError, TransientError, from_os_error


class SeenFile(NamedTuple):
    """A file that may have something to read."""

    file: TrackedFile
    found: FoundFile
    followed: bool
    """Whether another file comes after it, so that its own lines must be read first."""
    closed: bool
    """Whether it counts as complete: another file comes after it, and it has not changed for a while."""


class ScanResult(NamedTuple):
    """Result of one scan."""

    known: list[KnownFile]
    """Tracked files that exist, without unchanged ones of the lists."""
    fresh: Iterable[KnownFile]
    """New files, numbered."""
    listed: list[TrackedFile]
    """Those of ``known`` that come from the lists."""
    rewritten: list[TrackedFile]
    """Files of the lists whose content was overwritten after it was read."""
    superseded: list[TrackedFile]
    """Files of the lists replaced by another tracked file at the same place: their content has changed since."""
    newest: FoundFile | None
    """The last file in reading order."""


class _Changes(NamedTuple):
    """Files that differ from the position and its lists."""

    changed: list[KnownFile]
    rewritten: list[TrackedFile]
    superseded: list[TrackedFile]
    new: list[FoundFile]


class FileScan:
    """Scans of one source's files. Caches the files that were already recognised."""

    def __init__(self, settings: FileSourceSettings, path: str, root: str, many: bool) -> None:
        self._settings, self._path, self._root, self._many = settings, path, root, many
        self._matches = FileMatches()
        self._quiet = Quiet()
        self._folder = folder = FolderLooks(FolderEntries(settings.path, root, settings.excluded)) if many else None
        self.places = LastPlaces(partial(homes_of, path) if folder is None else folder.homes)
        self.copies = FileCopies(path, many, self.places.homes)
        self._strays = ListedStrays(self._matches, self.places, self.copies)

    def files(self) -> list[FoundFile]:
        """Return all existing files in reading order."""
        try:
            if self._many:
                return list_many(self._settings.path, self._root, self._settings.excluded)
            return list_family(self._path)
        except OSError as error:
            raise from_os_error(error, f"can't read {self._settings.path}") from error

    def require_readable(self) -> None:
        """Raise if a single file is missing, or if one of the files can't be opened. Reads none of them."""
        files = self.files()
        if not files and not self._many:
            raise self._missing()
        for found in files:
            try:
                OpenFile(found.url).close()
            except FileNotFoundError:
                continue  # renamed or deleted since it was listed
            except OSError as error:
                raise from_os_error(error, f"can't read {found.name}") from error

    def look(self, position: FilePosition, finished: FinishedFiles) -> ScanResult:
        """Scan all files; ``finished``: those in the position's lists.

        Raises ``FatalError`` if a range seen earlier is missing, unless the settings allow that.
        """
        if self._folder is not None:
            look = self._folder.look(position, finished)
            known, gone = self._known(position, look.examined)
            if not gone and len(known) == len(position.files):
                changes = self._with_strays(self._changes(look.examined, known, position, finished), known, finished)
                fresh = _once_each(look.unknown(changes.new), [*known, *changes.changed])
                return _result(known, changes, _numbered(fresh, position.seen), look.newest)
        return self._look_at_all(position, finished)

    def _look_at_all(self, position: FilePosition, finished: FinishedFiles) -> ScanResult:
        """Scan all files, examining each: one of the position is not where it was."""
        listed = self.files()
        known, gone = self._known(position, listed)
        if gone:
            # a file may be in the middle of a rename: list again before reporting it as missing
            listed = self.files()
            known, gone = self._known(position, listed)
        copies = NO_COPIES
        if missing := _missing(position, known):
            copies = self.copies.of(missing)
            known, gone = self._known(position, [*self.places.strayed(missing), *listed], copies)
        if self._settings.on_gone == "fail":
            missing = _missing(position, known)
            # the lines of a rotated file are read before those of the next one: only the last one may have a rest
            ends = missing if self._many else [file for file in missing if file is position.files[-1]]
            copies.require_readable(ends)
            if gone:
                raise gone[0]
        if not self._many and known and (copy := self._truncated(known)):
            known[-1] = copy
        candidates = listed if self._many else self._rotated(position, listed, known)
        changes = self._with_strays(self._changes(candidates, known, position, finished), known, finished)
        last = listed if self._many else [*(found for _, found in (*known, *changes.changed)), *changes.new]
        if not last and not position.seen and not self._many:
            raise self._missing()
        return _result(known, changes, _numbered(changes.new, position.seen), last[-1] if last else None)

    def examine_all(self) -> None:
        """Make the next scan examine every file, including those just found unchanged."""
        if self._folder is not None:
            self._folder.forget()

    def unread(self, result: ScanResult) -> Iterator[SeenFile]:
        """Yield the files that may have something to read, in reading order.

        Raises ``FileChanged`` if a place has been taken by another file since the scan.
        """
        self.places.forget_oldest(len(result.known))
        newest = None if result.newest is None else result.newest.ident
        for file, found in chain(result.known, result.fresh):
            self.places.seen(file, found)
            followed = found.ident != newest
            # a later name does not mean that writing to this file has stopped: it must also have been quiet
            closed = followed and self._quiet.seconds(found) >= self._settings.rotate_wait
            yield SeenFile(file, found, followed, closed)

    # -- known files ----------------------------------------------------------------------------------------------

    def _known(
        self, position: FilePosition, listed: list[FoundFile], copies: Copies = NO_COPIES
    ) -> tuple[list[KnownFile], list[FatalError]]:
        """Return the tracked files that exist, or copies of them, and an error for each file with missing bytes."""
        places, known, gone = by_slot(listed, position.files), list[KnownFile](), list[FatalError]()
        matches = {file.number: self._matches.match(file, places.get(slot_of(file), ())) for file in position.files}
        taken = {match.found.ident for match in matches.values() if match is not None}
        for file in position.files:
            match = matches[file.number]
            if match is None and (match := self._matches.copied(file, copies.of(file, taken))):
                taken.add(match.found.ident)
            if match is not None:
                known.append((match.file, match.found))
            if (match is None and file.size > file.offset) or (match is not None and match.lost):
                gone.append(self._gone(file, match))
        return known, gone

    def _truncated(self, known: list[KnownFile]) -> KnownFile | None:
        """Return the last file in the copy that was made of it before it was truncated, if nothing of it was read.

        No mark shows that it is another content: it is if the copy was born after the last scan and before the last
        change of the file, and begins otherwise.
        """
        (file, found), taken = known[-1], {found.ident for _, found in known}
        if file.offset or found.url != self._path:
            return None
        for copy in self.copies.of([file]).readable:
            is_later = copy.birth >= file.changed and (copy.unpacked or copy.birth <= found.changed)
            if is_later and copy.ident not in taken and begin_otherwise(copy, found):
                return file.at(copy), copy
        return None

    def _changes(
        self, listed: list[FoundFile], known: list[KnownFile], position: FilePosition, finished: FinishedFiles
    ) -> _Changes:
        """Look up listed files that are not ``known`` in the lists. Unchanged files are not opened."""
        changes, active = _Changes([], [], [], []), {file.number for file in position.files}
        for _, found in known:
            changes.superseded.extend(finished.may_be(found, active))
        for found in _unknown(listed, known):
            row = finished.settled(found, active)
            if row is None:
                self._judge(found, finished.may_be(found, active), changes)
            elif self._folder is not None:
                self._folder.settle(found, row)
        return changes

    def _with_strays(self, changes: _Changes, known: list[KnownFile], finished: FinishedFiles) -> _Changes:
        """Add the files of the lists that have unread lines elsewhere than in the folder."""
        if self._folder is None or not finished.rows:
            return changes
        replaced = [*changes.rewritten, *changes.superseded]
        for seen in (*changes.new, *(seen for _, seen in known)):
            replaced += [row for row in finished.at(seen.inode) if not row.may_be(seen)]
        numbers = {file.number for file, _ in (*known, *changes.changed)}
        strays = self._strays.unread(self._folder.entries, finished, {row.number for row in replaced})
        found = [(file, seen) for file, seen in strays if file.number not in numbers]
        numbers, idents = {file.number for file, _ in found}, {seen.ident for _, seen in found}
        return _Changes(
            [*changes.changed, *found],
            [row for row in changes.rewritten if row.number not in numbers],
            [row for row in changes.superseded if row.number not in numbers],
            [new for new in changes.new if new.ident not in idents],
        )

    def _judge(self, found: FoundFile, rows: list[TrackedFile], changes: _Changes) -> None:
        """Record a file that matches none of its candidate ``rows`` of the lists, which are given newest first."""
        match = next((row for row in rows if self._matches.match(row, (found,))), None)
        if match is None:
            changes.new.append(found)
            changes.rewritten.extend(rows)
        else:
            changes.changed.append((match, found))
            changes.superseded.extend(row for row in rows if row is not match)

    def last_paths(self, collection_of: Callable[[str], str]) -> dict[str, str]:
        """Return the last path in reading order of each collection of a folder; empty for a single file."""
        return {} if self._folder is None else self._folder.last_paths(collection_of)

    def alive(self, files: Collection[TrackedFile]) -> set[int]:
        """Return the numbers of the files that exist, by inode and birth; all of them if nothing is listed."""
        alive = self._listed_inodes(files)
        if len(alive) == len(files):
            return alive
        for _ in range(2):  # a file in the middle of a rename may be missing once
            there = {(found.inode, found.birth) for found in self.files()}
            # a folder that can't be read, for example because its disk is unmounted, looks like an empty one
            alive |= {file.number for file in files if not there or (file.inode, file.birth) in there}
            if len(alive) == len(files):
                break
        return alive

    def _listed_inodes(self, files: Collection[TrackedFile]) -> set[int]:
        """Return the numbers of the newest files with the inodes of the folder's entries, without examining them.

        An entry may by now be another file with the same inode. The missing file's row then stays until that file is
        read.
        """
        if self._folder is None:
            return set()
        inodes = self._folder.inodes()
        newest = {file.inode: file.number for file in sorted(files, key=lambda file: file.number)}
        return {number for inode, number in newest.items() if inode in inodes}

    # -- locations ------------------------------------------------------------------------------------------------

    def is_there(self, files: Collection[TrackedFile]) -> bool:
        """Return whether one of these files exists now: the previous listing may have missed a renamed one."""
        places = by_slot(self.files(), files)
        for file in files:
            if (opened := open_one(file, places.get(slot_of(file), ()))) is not None:
                opened.close()
                return True
        return False

    # -- new files ------------------------------------------------------------------------------------------------

    def _rotated(self, position: FilePosition, listed: list[FoundFile], known: list[KnownFile]) -> list[FoundFile]:
        """Return the path's file, preceded by files that were rotated away since the last known one.

        Like Conduit, a new source reads the path only, not files rotated away before it started.
        """
        current = [found for found in listed if found.url == self._path]
        last = position.files[-1] if position.files else None
        if last is None:
            return current
        is_at_path = any(last.may_be(found) for found in current)
        is_copied = any(file.number == last.number and not last.may_be(found) for file, found in known)
        # the last one is still at the path, even if truncated: nothing came between, and a copy of it is not a new file
        if is_at_path and not is_copied:
            return current
        rotated = [found for found in listed if found.url != self._path]
        # a late line in the last one, or a clock that was set back, makes the times alone no proof;
        # but every copy of a file that was truncated is born later than the file: only the times of changes count
        born = 0 if is_at_path else last.birth
        later = [found for found in rotated if found.modified >= last.modified or 0 < born < found.birth]
        return [*sorted([*later, *self.copies.packed_since(last)], key=lambda one: (one.modified, one.name)), *current]

    # -- errors ---------------------------------------------------------------------------------------------------

    def _gone(self, file: TrackedFile, match: Match | None) -> FatalError:
        begin = file.offset if match is None or match.found.size >= file.size else match.found.size
        return FatalError(
            f"bytes {begin} to {file.size} of {file.name} are gone: deleted, cut off or replaced unread",
            code="file.range_gone",
            place=self._path,
            fix=f"move the file back; or put a copy of it there, named {file.name}.1 (as {file.name} it would be "
            "another file, which is read from its beginning); or set on-gone: skip to lose them",
        )

    def _missing(self) -> TransientError:
        return TransientError(
            f"there is no file {self._settings.path}",
            code="file.missing",
            place=self._path,
            fix="create it, or correct the setting path",
        )


def _missing(position: FilePosition, known: list[KnownFile]) -> list[TrackedFile]:
    """Return the files of a position that are not known to exist."""
    here = {file.number for file, _ in known}
    return [file for file in position.files if file.number not in here]


def _unknown(listed: list[FoundFile], known: list[KnownFile]) -> list[FoundFile]:
    """Return the listed files that are not among the known ones."""
    idents, slots = {found.ident for _, found in known}, {slot_of(found) for _, found in known}
    return [found for found in listed if slot_of(found) not in slots or found.ident not in idents]


def _result(
    known: list[KnownFile], changes: _Changes, fresh: Iterable[KnownFile], newest: FoundFile | None
) -> ScanResult:
    changed, rewritten, superseded, _ = changes
    every = sorted([*known, *changed], key=lambda one: one[0].number) if changed else known
    return ScanResult(every, fresh, [file for file, _ in changed], rewritten, superseded, newest)


def _once_each(new: Iterable[FoundFile], known: list[KnownFile]) -> Iterator[FoundFile]:
    """Yield each new file once: it may have two names, one of which belongs to a known file."""
    seen = {found.ident for _, found in known}
    for found in new:
        if found.ident not in seen:
            seen.add(found.ident)
            yield found


def _numbered(new: Iterable[FoundFile], first: int) -> Iterator[KnownFile]:
    for number, found in enumerate(new, first):
        yield TrackedFile(found.name, number, found.inode, birth=found.birth), found
