"""Base of destinations that write to a local path, in one of several layouts: an ordered file or a folder of parts."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conduit_dagster import storage
from conduit_dagster.connectors.path_rules import located
from conduit_dagster.recovery.errors import FatalError, from_os_error
from conduit_dagster.sdk import (
    ConnectorContext,
    Delivery,
    StagedDestination,
    Target,
)
from conduit_dagster.storage import sync_entry


class PathLayout(ABC):
    """Layout of deliveries on disk. Its methods are those of :class:`Destination`, for one fixed path."""

    def __init__(self, path: Path, context: ConnectorContext) -> None:
        self._path = path
        self._context = context
        self._synced_inode: int | None = None

    @contextmanager
    def _naming_errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise from_os_error(error, f"can't write {self._path}") from error

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
        self._layout = self._laid_out(self._path)

    @abstractmethod
    def _laid_out(self, path: Path) -> PathLayout:
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

    def check(self) -> None:
        """Try to open the file or to create the folder."""
        self._layout.check()

    def staging(self, default: str) -> str:
        """Return the staging folder; for a folder of parts it is on the same file system as the published parts."""
        return self._layout.staging(default)

    def target(self, previous: Target | None) -> Target:
        """Return the exact target of this delivery."""
        same = previous if previous and previous.get("path") == str(self._path) else None
        return self._layout.target(same)

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the destination has the delivery's bytes."""
        return self._layout.holds(delivery)

    def publish(self, delivery: Delivery) -> Target:
        """Publish all of the delivery, or nothing that a later step could follow; any process may repeat it."""
        return self._layout.publish(delivery)

    def expected(self, delivery: Delivery) -> Target:
        """Return the future result of :meth:`settled`, whether or not the delivery succeeds."""
        return self._layout.expected(delivery)

    def settled(self, delivery: Delivery) -> Target:
        """Make the delivery durable and return the target after it."""
        return self._layout.settled(delivery)

    def retarget(self, delivery: Delivery) -> Target | None:
        """Return another target, only for one ordered file with ``if-changed: adopt``."""
        return self._layout.retarget(delivery)
