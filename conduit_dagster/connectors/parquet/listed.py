"""The Parquet files of a path, a folder or a glob."""

from __future__ import annotations

import os
from pathlib import Path

from conduit_dagster.connectors.file.listing import Found, is_many, list_many, look
from conduit_dagster.connectors.file.settings import GLOB
from conduit_dagster.recovery.errors import TransientError


def _fixed(path: str, root: str) -> Path:
    """The folder that a folder or glob begins with."""
    parts = Path(path.removeprefix("file://")).parts
    many = next((place for place, part in enumerate(parts) if GLOB & set(part)), len(parts))
    return Path(root, *parts[:many])


class ListedFiles:
    """By name; hidden ones are left out."""

    ordered = False

    def __init__(self, path: str, resolved: str, root: str) -> None:
        """``path`` as written, ``resolved`` against the project's ``root``."""
        self._path, self._resolved, self._root = path, resolved, root

    def files(self) -> list[Found]:
        """All there are now. Raises ``TransientError`` where the one file that was named is missing."""
        # looked at each time: a folder may appear later
        if is_many(self._path, self._root):
            fixed = _fixed(self._path, self._root)
            # two folders of a glob may have files of one name
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
