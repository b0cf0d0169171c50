"""The home of a project, ``.conduit``: a local folder that only its user may read, whatever the umask."""

from __future__ import annotations

import os
from pathlib import Path

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
SHARED_FILE = 0o666
"""Mode of a file to which the umask applies."""
_HOME_MARK = ".private"
"""Name of the file that marks a home: everything created below is readable by its user only, whatever the umask."""


def private_folder(path: Path) -> None:
    """Create a folder and its parents for their user only; an existing folder keeps its mode. Raises ``OSError``."""
    missing: list[Path] = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(PRIVATE_FOLDER, exist_ok=True)


def make_home(home: Path, private: bool = True) -> None:
    """Create a project's home, or restrict an existing one to its user, and mark it.

    If not ``private``, the umask applies. A home of another user keeps its mode. Raises ``OSError``.
    """
    if not private:
        home.mkdir(parents=True, exist_ok=True)
        (home / _HOME_MARK).unlink(missing_ok=True)
        return
    private_folder(home)
    found = home.stat()
    if found.st_mode & 0o077 and found.st_uid == os.geteuid():
        home.chmod(PRIVATE_FOLDER)
    mark = home / _HOME_MARK
    if not mark.exists():
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT, PRIVATE_FILE))


def file_mode(path: Path) -> int:
    """Return the mode with which a file is to be created."""
    return PRIVATE_FILE if is_private(path) else SHARED_FILE


def is_private(path: Path) -> bool:
    """Return whether a path is in a marked home. Destinations elsewhere keep their user's umask."""
    return any((folder / _HOME_MARK).exists() for folder in path.absolute().parents)
