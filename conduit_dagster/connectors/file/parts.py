"""A folder of parts as a destination."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from conduit_dagster.connectors.base import ConnectorContext, Delivery, Target
from conduit_dagster.connectors.file.entries import sync_entry
from conduit_dagster.recovery.errors import FatalError, from_os_error
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.state import storage

_NAMING = 2
"""Deliveries are named by step, skip and hash; up to version 1, whose targets say nothing, by step and hash."""


class PartsFolder:
    """Each delivery is one folder, ``step=NUMBER-SKIP-HASH``, made visible by one rename.

    In the order of their names the folders and their parts are one ordered stream: a step's own delivery has skip 0,
    its children follow. Spark reads the whole with ``spark.read.json(path)`` and sees the step as a partition column.
    """

    def __init__(self, path: Path, context: ConnectorContext) -> None:
        self._path = path
        self._context = context
        self._synced_inode: int | None = None

    def check(self) -> None:
        """Makes the folder."""
        try:
            (self._path / ".staging").mkdir(parents=True, exist_ok=True)
            inode = self._path.stat().st_ino
            if inode != self._synced_inode:
                sync_entry(self._path)
                self._synced_inode = inode
        except OSError as error:
            raise from_os_error(error, f"can't write {self._path}") from error

    def target(self, previous: Target | None) -> Target:
        """The folder, and how its deliveries are named; nothing before a delivery matters to its name."""
        del previous
        self.check()
        return {"path": str(self._path), "naming": _NAMING}

    def staging(self) -> str:
        """Inside the folder, hidden: a rename is atomic only on one file system."""
        names = (storage.safe_name(self._context.pipeline), storage.safe_name(self._context.connector))
        return str(self._path.joinpath(".staging", *names))

    def _final(self, delivery: Delivery) -> Path:
        step, name = f"step={delivery.step:012d}", delivery.hash[:12]
        # a step that an earlier version prepared keeps the name of that version: its frozen owner would use it too
        if delivery.skip == 0 and "naming" not in delivery.target:
            return self._path / f"{step}-{name}"
        return self._path / f"{step}-{delivery.skip:016d}-{name}"

    def _file(self, folder: Path, index: int, name: str) -> Path:
        return folder / f"part-{index:05d}{Path(name).suffix}"

    def holds(self, delivery: Delivery) -> bool:
        """Whether all parts are there with the bytes that were staged."""
        folder = self._final(delivery)
        paths = [self._file(folder, i, part.name) for i, part in enumerate(delivery.parts)]
        return all(path.is_file() for path in paths) and all(
            storage.digest(str(path), 0) == (part.bytes, part.sha256)
            for path, part in zip(paths, delivery.parts, strict=True)
        )

    def publish(self, delivery: Delivery) -> Target:
        """Only the parts that the ledger names are linked in, so that a zombie's files never become visible."""
        try:
            self._publish(delivery)
        except OSError as error:
            raise from_os_error(error, f"can't write {self._path}") from error
        return self.expected(delivery)

    def settled(self, delivery: Delivery) -> Target:
        """The folder, synced: whoever made it visible may have died before that."""
        final = self._final(delivery)
        for path in final.iterdir():
            storage.sync(str(path))
        storage.sync(str(final))
        storage.sync(str(self._path))
        return self.expected(delivery)

    def expected(self, delivery: Delivery) -> Target:
        """The same folder."""
        return delivery.target

    def retarget(self, delivery: Delivery) -> Target | None:
        """Never: a delivery's folder is named by its hash."""
        return None

    def _publish(self, delivery: Delivery) -> None:
        if self._final(delivery).exists() or not self._rename(delivery):
            self._require_held(delivery)
            self.settled(delivery)
        storage.sync(str(self._path))

    def _rename(self, delivery: Delivery) -> bool:
        """False where another attempt was first."""
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
        """Durable before it becomes visible: the parts' bytes by those who staged them, their entries here."""
        ready.mkdir(parents=True)
        for i, part in enumerate(delivery.parts):
            _link(Path(delivery.staging, part.name), self._file(ready, i, part.name))
        storage.sync(str(ready))

    def _require_held(self, delivery: Delivery) -> None:
        if not self.holds(delivery):
            raise FatalError(
                f"{self._final(delivery)} is there with other bytes than this delivery has",
                code="file.changed",
                place=str(self._final(delivery)),
                fix="move that folder away and run again",
            )


def _link(source: Path, into: Path) -> None:
    try:
        os.link(source, into)
    except OSError:
        shutil.copyfile(source, into)
        storage.sync(str(into))
