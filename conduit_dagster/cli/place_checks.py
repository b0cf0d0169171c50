"""Whether a run can write where it has to, for ``doctor``."""

from __future__ import annotations

import secrets
import shlex
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from conduit_dagster import storage
from conduit_dagster.recovery.errors import from_os_error
from conduit_dagster.storage import local_path

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    level: Level
    message: str
    fix: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)


def kept(name: str, url: str) -> Check:
    """Check whether files can be created and removed below a URL."""
    folder = local_path(url)
    return _stored(name, url) if folder is None else creatable(name, folder, str(folder))


def _stored(name: str, url: str) -> Check:
    """Check whether a file can be created and removed at a URL."""
    file = storage.join(url, f"~doctor-{secrets.token_hex(8)}")
    doing = f"{url} can't be written"
    try:
        storage.make_folder(url)
        storage.put_new(file, b"doctor")
        doing = f"what is written to {url} can't be removed"
        storage.remove(file)
    except OSError as error:
        known = from_os_error(error, doing)
        return Check(name, "fail", known.message, known.fix)
    return Check(name, "ok", url)


def creatable(name: str, folder: Path, shown: str) -> Check:
    """Check whether a file can be created in a folder, or, if the folder is missing, whether that can be created."""
    there = nearest(folder)
    if not there.is_dir():
        return Check(name, "fail", f"{shown}: {there} is not a folder", "choose another path in conduit.yaml")
    if (error := _refusal(there)) is not None:
        known = from_os_error(error, f"{there} can't be written")
        own = f"chown -R $USER {shlex.quote(str(there))}, or choose another path"
        return Check(name, "fail", known.message, own if known.code == "file.no_permission" else known.fix)
    return Check(name, "ok", shown if there == folder else f"{shown} (the first run makes it)")


def _refusal(folder: Path) -> OSError | None:
    """Return why the system creates no file in a folder; None if it does."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error


def nearest(path: Path) -> Path:
    """Return the path, or the nearest one above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())
