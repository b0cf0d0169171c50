"""A folder of parts as a destination."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from conduit_dagster import storage
from conduit_dagster.connectors.file.output_layout import PathLayout
from conduit_dagster.connectors.hardlink import link
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Delivery, Target

_STAGING = ".staging"
_NAMING = 2
"""Naming version: by step, skip and hash. Version 1, whose targets lack the field, used step and hash."""


class PartsFolder(PathLayout):
    """Each delivery is one folder, ``step=NUMBER-SKIP-HASH``, made visible by one rename.

    Sorted by name, the folders and their parts form one ordered stream: a step's own delivery has skip 0, its children
    follow. Spark reads everything with ``spark.read.json(path)`` and sees the step as a partition column.
    """

    def check(self) -> None:
        """Create the folder."""
        with self._naming_errors():
            self._path.joinpath(_STAGING).mkdir(parents=True, exist_ok=True)
            self._sync_entry(self._path.stat().st_ino)

    def target(self, previous: Target | None) -> Target:
        """Return the folder and its naming version; a delivery's name does not depend on earlier deliveries."""
        del previous
        self.check()
        return {"path": str(self._path), "naming": _NAMING}

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
        with self._naming_errors():
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
            link(Path(delivery.staging, part.name), self._file(ready, i, part.name))
        storage.sync(str(ready))

    def _require_held(self, delivery: Delivery) -> None:
        if not self.holds(delivery):
            raise FatalError(
                f"{self._final(delivery)} is there with other bytes than this delivery has",
                code="file.changed",
                place=str(self._final(delivery)),
                fix="move that folder away and run again",
            )
