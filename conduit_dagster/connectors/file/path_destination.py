"""Base of destinations that write to a local path: the layout of deliveries there, of which one is a folder of parts.

With the search for their files, for previews.
"""

from __future__ import annotations

import os
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

from conduit_dagster import storage
from conduit_dagster.connectors.file.listing import HIDDEN
from conduit_dagster.connectors.path_settings import located
from conduit_dagster.recovery.errors import FatalError, from_os_error
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import ConnectorContext, Delivery, StagedDestination, Target
from conduit_dagster.storage import sync_entry


class PathLayout(ABC):
    """Layout of deliveries on disk. Its methods are those of :class:`Destination`, for one fixed path.

    They may raise ``OSError``, to which :class:`PathDestination` adds the path.
    """

    def __init__(self, path: Path, context: ConnectorContext) -> None:
        self._path = path
        self._context = context
        self._synced_inode: int | None = None
        self.place = storage.inside(str(path), context.root)
        """The path as targets name it: one inside the project is relative to it, which may be moved."""

    def _sync_entry(self, inode: int) -> None:
        """Sync the directory entries that lead to the path, once for each file or folder found there."""
        if inode != self._synced_inode:
            sync_entry(str(self._path))
            self._synced_inode = inode

    @abstractmethod
    def check(self) -> None:
        """Raise if the path can't be written."""

    def staging(self, default: str) -> str:
        """Return the staging folder of parts."""
        return default

    @abstractmethod
    def target(self, previous: Target | None) -> Target:
        """Return the target of the next delivery."""

    @abstractmethod
    def holds(self, delivery: Delivery) -> bool:
        """Return whether the destination has all bytes of the delivery."""

    @abstractmethod
    def publish(self, delivery: Delivery) -> Target:
        """Write the delivery durably."""

    @abstractmethod
    def settled(self, delivery: Delivery) -> Target:
        """Make the existing delivery durable."""

    def expected(self, delivery: Delivery) -> Target:
        """Return the target after this delivery."""
        return delivery.target

    def retarget(self, delivery: Delivery) -> Target | None:
        """Return another target for a delivery whose own target is lost, or None."""
        return None


class PathDestination(StagedDestination):
    """Common part of all layouts: the path, with publishing delegated to the layout."""

    def __init__(self, settings: Any, context: ConnectorContext, path: str) -> None:
        super().__init__(settings, context)
        self._path = self._local(located(context, path))
        self._layout = self._layout_at(self._path)

    @abstractmethod
    def _layout_at(self, path: Path) -> PathLayout:
        """Return the layout at this path."""

    def _local(self, path: str) -> Path:
        local = storage.local_path(path)
        if local is None:
            raise FatalError(
                f"the {self.name} destination writes local paths only, not {path}",
                code="file.not_local",
                fix="use a path that the driver and the workers share",
            )
        return local

    @property
    def owned(self) -> str:
        """The resolved path, which may have only one owner."""
        return os.path.realpath(self._path)  # unlike Path.resolve, accepts a link to itself

    @property
    def address(self) -> str:
        """Absolute path as written: links are not followed."""
        return str(self._path.absolute())

    @contextmanager
    def _naming_errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise from_os_error(error, f"can't write {self._path}") from error

    def check(self) -> None:
        """Try to open the file or to create the folder."""
        with self._naming_errors():
            self._layout.check()

    def staging(self, default: str) -> str:
        """Return the staging folder; for a folder of parts it is on the same file system as the published parts."""
        return self._layout.staging(default)

    def target(self, previous: Target | None) -> Target:
        """Return the exact target of this delivery."""
        same = previous if previous and self._is_here(previous) else None
        with self._naming_errors():
            return self._layout.target(same)

    def _is_here(self, target: Target) -> bool:
        # earlier versions stored whole paths
        return storage.inside(target.get("path", ""), self.context.root) == self._layout.place

    def retarget(self, delivery: Delivery) -> Target | None:
        """Return another target for a delivery whose own target is lost; None if there is none, or none is needed."""
        with self._naming_errors():
            return self._layout.retarget(delivery)

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the destination has the delivery's bytes."""
        with self._naming_errors():
            return self._layout.holds(delivery)

    def publish(self, delivery: Delivery) -> Target:
        """Publish all of the delivery, or nothing that a later step could follow; any process may repeat it."""
        with self._naming_errors():
            return self._layout.publish(delivery)

    def settled(self, delivery: Delivery) -> Target:
        """Make the delivery durable and return the target after it."""
        with self._naming_errors():
            return self._layout.settled(delivery)


_MOST_FILES: Final = 200
"""Maximum number of files to count rows in: more would take too long."""


def countable_files(path: Path) -> list[str] | None:
    """Return the visible files of a folder of parts by name, or the file itself; None if they are too many to count."""
    if not path.is_dir():
        return [str(path)] if path.is_file() else []
    found = list(islice(_below(path), _MOST_FILES + 1))
    return None if len(found) > _MOST_FILES else found


def newest_file(path: Path) -> str | None:
    """Return the last visible file by name, the newest of a folder of parts; None if there are none."""
    if path.is_dir():
        entries = sorted((entry for entry in path.iterdir() if entry.name[0] not in HIDDEN), reverse=True)
        return next((found for entry in entries if (found := newest_file(entry))), None)
    return str(path) if path.is_file() else None


def _below(folder: Path) -> Iterator[str]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name[0] in HIDDEN:
            continue
        if entry.is_dir():
            yield from _below(Path(entry.path))
        else:
            yield entry.path


_STAGING = ".staging"
_NAMING = 2
"""Naming version: by step, skip and hash. Version 1, whose targets lack the field, used step and hash."""


class PartsFolder(PathLayout):
    """Each delivery is one folder, ``step=NUMBER-SKIP-HASH``, made visible by one rename.

    Sorted by name, the folders and their parts form one ordered stream: a step's own delivery has skip 0, its children
    follow. Spark reads everything with ``spark.read.json(path)`` and sees the step as a partition column, which
    hides a field ``step``.
    """

    def check(self) -> None:
        """Create the folder."""
        self._path.joinpath(_STAGING).mkdir(parents=True, exist_ok=True)
        self._sync_entry(self._path.stat().st_ino)

    def target(self, previous: Target | None) -> Target:
        """Return the folder and its naming version; a delivery's name does not depend on earlier deliveries."""
        del previous
        self.check()
        return {"path": self.place, "naming": _NAMING}

    def staging(self, default: str) -> str:
        """Return a hidden staging folder inside the folder: a rename is atomic only within one file system."""
        del default
        return self._context.folder_in(str(self._path / _STAGING))

    def _final(self, delivery: Delivery) -> Path:
        step, name = f"step={delivery.step:012d}", delivery.hash[:12]
        # a step prepared by an earlier version keeps that version's name: its frozen owner would use it too
        if delivery.skip == 0 and "naming" not in delivery.target:
            return self._path / f"{step}-{name}"
        return self._path / f"{step}-{delivery.skip:016d}-{name}"

    def _file(self, folder: Path, index: int, name: str) -> Path:
        return folder / f"part-{index:05d}{Path(name).suffix}"

    def holds(self, delivery: Delivery) -> bool:
        """Return whether all parts exist with the staged bytes."""
        folder = self._final(delivery)
        paths = [self._file(folder, i, part.name) for i, part in enumerate(delivery.parts)]
        return all(path.is_file() for path in paths) and all(
            storage.digest(str(path), 0) == (part.bytes, part.sha256)
            for path, part in zip(paths, delivery.parts, strict=True)
        )

    def publish(self, delivery: Delivery) -> Target:
        """Link only the parts named by the ledger, so that a zombie's files never become visible."""
        if not self._final(delivery).exists() and self._rename(delivery):
            storage.sync(str(self._path))
            return delivery.target
        self._require_held(delivery)
        return self.settled(delivery)

    def settled(self, delivery: Delivery) -> Target:
        """Sync the folder: the process that made it visible may have crashed before its sync."""
        final = self._final(delivery)
        for path in final.iterdir():
            storage.sync(str(path))
        storage.sync(str(final))
        storage.sync(str(self._path))
        return delivery.target

    def _rename(self, delivery: Delivery) -> bool:
        """Make the folder visible; return False if another attempt was first."""
        ready = Path(delivery.staging).parent / f"ready-{secrets.token_hex(8)}"
        try:
            self._fill(ready, delivery)
            reached("mid-publish", self._context.pipeline)
            ready.rename(self._final(delivery))
        except OSError:
            shutil.rmtree(ready, ignore_errors=True)
            if not self._final(delivery).exists():
                raise
            return False
        return True

    def _fill(self, ready: Path, delivery: Delivery) -> None:
        """Link the parts durably before they become visible: their writers synced the bytes, this syncs the entries."""
        ready.mkdir(parents=True)
        for i, part in enumerate(delivery.parts):
            storage.link(Path(delivery.staging, part.name), self._file(ready, i, part.name))
        storage.sync(str(ready))

    def _require_held(self, delivery: Delivery) -> None:
        if not self.holds(delivery):
            raise FatalError(
                f"{self._final(delivery)} is there with other bytes than this delivery has",
                code="file.changed",
                place=str(self._final(delivery)),
                fix="move that folder away and run again",
            )
