"""Where the files of one source were last seen, and where a rename has taken them since."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from conduit_dagster import storage
from conduit_dagster.connectors.file.file_copies import examine_content
from conduit_dagster.connectors.file.listing import FoundFile, TrackedFile

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
        wanted, found = {file.inode for file in files if file.inode and file.birth}, list[FoundFile]()
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


def homes_of(path: str) -> set[str]:
    """Return the folder of a file, and that of the file that it leads to if it is a link; empty for a remote one."""
    if not storage.is_local(path):
        return set()
    return {str(Path(place).parent) for place in (path, os.path.realpath(path))}
