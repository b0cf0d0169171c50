"""The files that a path means now, in reading order."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from conduit_dagster.connectors.file import birth
from conduit_dagster.connectors.file.settings import GLOB
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state import storage

_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")


class Found(NamedTuple):
    """A file as it was at one look: by its path, or by an open descriptor.

    A look by its path is a hint only: another file may have the path by the time it is opened.
    """

    url: str
    name: str
    inode: int
    size: int
    modified: int
    changed: int = 0
    """When its inode last changed, in nanoseconds: no tool sets that back."""
    birth: int = 0
    """When it was made, in nanoseconds; 0 where the file system does not tell."""
    device: int = 0
    """Tells apart equal inodes of two disks. Not kept: it may change when a disk is mounted again."""

    @property
    def ident(self) -> str:
        """What tells files apart within one process: device, inode and birth where there are any, else the name."""
        return f"{self.device}:{self.inode}:{self.birth}" if self.inode else self.name


def found_of(url: str, name: str, stat: os.stat_result, made: int) -> Found:
    """The file that a ``stat`` tells of; ``made`` is its birth."""
    times = stat.st_mtime_ns, stat.st_ctime_ns
    return Found(url, name, stat.st_ino, stat.st_size, *times, made, stat.st_dev)


def look(url: str, name: str) -> Found | None:
    """The file as it is now, or None where there is none. Raises ``OSError`` where it can't be looked at."""
    path = storage.local_path(url)
    if path is None:
        size = storage.size(url)
        return None if size is None else Found(url, name, 0, size, 0)
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return found_of(url, name, stat, birth.birth_of(str(path)))


def is_many(path: str, root: str) -> bool:
    """Whether the path, as written, means a folder or a glob rather than one file."""
    local = storage.local_path(path)
    return bool(GLOB & set(path)) or path.endswith("/") or (local is not None and Path(root, local).is_dir())


def list_many(path: str, root: str) -> list[Found]:
    """The files of a folder or glob by name; hidden ones and ``_`` ones are left out, as Spark does.

    A file under two names, such as a link to the newest one, is listed once.
    """
    if "://" in path and not path.startswith("file://"):
        raise FatalError(
            f"a folder or glob of files must be local, not {path}",
            code="file.not_local",
            fix="name one file, or mount the folder",
        )
    written = path.removeprefix("file://")
    pattern = written if GLOB & set(written) else os.path.join(glob.escape(written), "*")  # noqa: PTH118
    names = sorted(glob.glob(pattern, root_dir=root))  # noqa: PTH207  # Path.glob takes no absolute pattern
    return _once(_files(Path(root, name) for name in names))


def _files(paths: Iterable[Path]) -> Iterator[Found]:
    for path in paths:
        if not path.name.startswith((".", "_")) and not path.is_dir():
            found = look(str(path), _checked(path.name))
            if found is not None:
                yield found


def _checked(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise FatalError(
            f"the file name {name.encode('utf-8', 'backslashreplace').decode()} is no UTF-8",
            code="file.name_invalid",
            fix="rename the file, or choose a glob that leaves it out",
        ) from None
    return name


def list_family(path: str) -> list[Found]:
    """What one path was rotated to, from the oldest change on (``path.*`` and ``path-*``, not compressed), then itself.

    The path is looked at first: a file that is renamed in between is found under its new name, and nothing of it is
    missed.
    """
    local = storage.local_path(path)
    current = look(path, path.rsplit("/", 1)[-1])
    itself = [current] if current is not None else []
    if local is None or not local.parent.is_dir():
        return itself
    siblings = (p for p in local.parent.iterdir() if _is_rotated(p.name, local.name))
    rotated = sorted(_files(siblings), key=lambda found: (found.modified, found.name))
    return _once([*rotated, *itself])


def _is_rotated(name: str, base: str) -> bool:
    return name.startswith((f"{base}.", f"{base}-")) and not name.endswith(_PACKED)


def _once(files: Iterable[Found]) -> list[Found]:
    kept: dict[str, Found] = {}
    for found in files:
        kept.setdefault(found.ident, found)
    return list(kept.values())
