"""A folder of parts as a destination."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from conduit_dagster.connectors.base import Delivery, Target
from conduit_dagster.recovery.errors import FatalError, from_os_error
from conduit_dagster.state import storage


class PartsFolder:
    """Each delivery is one folder, ``step=NUMBER-HASH``, made visible by one rename.

    In the order of their names the folders and their parts are one ordered stream; Spark reads the whole with
    ``spark.read.json(path)`` and sees the step as a partition column.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self) -> None:
        """Makes the folder."""
        try:
            (self._path / ".staging").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise from_os_error(error, f"can't write {self._path}") from error

    def target(self, previous: Target | None) -> Target:
        """The folder; a delivery's own name comes from its step and hash, so nothing before it matters."""
        del previous
        self.check()
        return {"path": str(self._path)}

    def staging(self, pipeline: str, connector: str) -> str:
        """Inside the folder, hidden: a rename is atomic only on one file system."""
        return str(self._path / ".staging" / storage.safe_name(pipeline) / storage.safe_name(connector))

    def _final(self, delivery: Delivery) -> Path:
        return self._path / f"step={delivery.step:012d}-{delivery.hash[:12]}"

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
        return delivery.target

    def settled(self, delivery: Delivery) -> Target:
        """The folder, synced: whoever made it visible may have died before that."""
        final = self._final(delivery)
        for path in final.iterdir():
            storage.sync(str(path))
        storage.sync(str(final))
        storage.sync(str(self._path))
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
        ready.mkdir(parents=True)
        for i, part in enumerate(delivery.parts):
            _link(Path(delivery.staging, part.name), self._file(ready, i, part.name))
        storage.sync(str(ready))
        try:
            ready.rename(self._final(delivery))
        except OSError:
            if not self._final(delivery).exists():
                raise
            shutil.rmtree(ready)
            return False
        return True

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
