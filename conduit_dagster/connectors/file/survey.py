"""One look at a source's files: which of them are known, which are new, and what is gone."""

from __future__ import annotations

import time
from typing import NamedTuple

from conduit_dagster.connectors.file.listing import Found, list_family, list_many
from conduit_dagster.connectors.file.settings import FileSourceSettings
from conduit_dagster.connectors.file.tracked import FilePosition, Tracked, mark_of
from conduit_dagster.recovery.errors import FatalError, TransientError, from_os_error


class Seen(NamedTuple):
    """A file that may have something to read."""

    file: Tracked
    found: Found
    followed: bool
    """Whether another file comes after it, so that its own lines must be through first."""
    closed: bool
    """Whether nobody writes to it any more: it was rotated away and has been quiet for a while."""


class Surveyor:
    """Looks at the files of one source. Remembers which of them it has already recognised."""

    def __init__(self, settings: FileSourceSettings, path: str, root: str, many: bool) -> None:
        self._settings, self._path, self._root, self._many = settings, path, root, many
        self._recognised: dict[int, tuple[Found, int]] = {}

    def files(self) -> list[Found]:
        """All files there are now, in reading order."""
        try:
            if self._many:
                return list_many(self._settings.path, self._root)
            return list_family(self._path)
        except OSError as error:
            raise from_os_error(error, f"can't read {self._settings.path}") from error

    def survey(self, position: FilePosition) -> list[Seen]:
        """Every file that may have something to read, in reading order.

        Raises ``FatalError`` where a range that was seen is gone, unless the settings let it go.
        """
        listed = self.files()
        known, gone = self._known(position, listed)
        if gone:
            # a file may be on its way from one name to another: look again before saying that it is gone
            listed = self.files()
            known, gone = self._known(position, listed)
        if gone and self._settings.on_gone == "fail":
            raise self._gone(gone[0])
        files = [*known, *self._fresh(position, listed, {found.ident for _, found in known})]
        if not files and not position.seen and not self._many:
            raise self._missing()
        last = len(files) - 1
        return [Seen(f, found, i < last, i < last and self._is_quiet(found)) for i, (f, found) in enumerate(files)]

    def _is_quiet(self, found: Found) -> bool:
        return self._many or time.time_ns() - found.modified >= self._settings.rotate_wait * 1e9

    def _known(self, position: FilePosition, listed: list[Found]) -> tuple[list[tuple[Tracked, Found]], list[Tracked]]:
        places = {found.ident: found for found in listed}
        matched = [(file, self.match(file, places)) for file in position.files]
        known = [(file, found) for file, found in matched if found is not None]
        return known, [file for file, found in matched if found is None and file.size > file.offset]

    def places(self) -> dict[str, Found]:
        """All files by what tells them apart."""
        return {found.ident: found for found in self.files()}

    def match(self, file: Tracked, places: dict[str, Found]) -> Found | None:
        """Where a tracked file is now, if it still holds what was read of it."""
        found = places.get(file.ident)
        if found is None or found.size < file.offset:
            return None
        if self._recognised.get(file.number) != (found, file.offset):
            if mark_of(found.url, file.offset) != file.mark:
                return None
            self._recognised[file.number] = (found, file.offset)
        return found

    def _fresh(self, position: FilePosition, listed: list[Found], known: set[str]) -> list[tuple[Tracked, Found]]:
        files = listed if self._many else self._rotated(position, listed)
        new = [found for found in files if found.ident not in known]
        return [(Tracked(f.name, position.seen + i, f.inode), f) for i, f in enumerate(new)]

    def _rotated(self, position: FilePosition, listed: list[Found]) -> list[Found]:
        """The path's file, and before it what came and went since the last one that we know.

        A new source reads the path alone, as Conduit does, not what was rotated away before it began.
        """
        current = [found for found in listed if found.url == self._path]
        last = position.files[-1] if position.files else None
        if last is None or any(found.ident == last.ident for found in current):
            return current
        rotated = [found for found in listed if found.url != self._path]
        return [*(found for found in rotated if found.modified >= last.modified), *current]

    def _gone(self, file: Tracked) -> FatalError:
        return FatalError(
            f"bytes {file.offset} to {file.size} of {file.name} are gone: deleted, cut off or replaced unread",
            code="file.range_gone",
            place=self._path,
            fix="put the file back under any name that begins with the old one, or set on-gone: skip to lose them",
        )

    def _missing(self) -> TransientError:
        return TransientError(
            f"there is no file {self._settings.path}",
            code="file.missing",
            place=self._path,
            fix="create it, or correct the setting path",
        )
