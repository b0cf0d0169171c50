"""Removal of what a folder held when the lease was ours: a newer owner's files stay, whenever it took over."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from conduit_dagster import storage


class FolderListing:
    """The files and folders below ``url``, listed now.

    No name is ever used again, so they may be removed after a lease is lost. A folder of a store is removed as it is
    then: the caller checks its lease right before.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._files, self._folders, self._failed = list[Path](), list[Path](), list[OSError]()
        path = storage.local_path(url)
        self._is_listed = path is not None and not path.is_symlink()
        if path is None or not self._is_listed or not path.is_dir():
            return
        # from below; a link to a folder is not followed, and removed like a file
        for folder, inner, files in os.walk(path, topdown=False, onerror=self._failed.append):
            here = Path(folder)
            self._files += [here / name for name in files]
            self._files += [here / name for name in inner if (here / name).is_symlink()]
            self._folders.append(here)

    def remove(self) -> None:
        """Remove them; no effect on what is gone. Raises ``OSError`` for the first one that stays."""
        if not self._is_listed:
            storage.remove_folder(self._url)
            return
        ended = [_ended(file.unlink) for file in self._files] + [_ended(folder.rmdir) for folder in self._folders]
        if failed := [*self._failed, *(error for error in ended if error is not None)]:
            raise failed[0]


def _ended(remove: Callable[[], None]) -> OSError | None:
    try:
        remove()
    except OSError as error:
        # what is new in a folder stays
        return None if error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST) else error
    return None
