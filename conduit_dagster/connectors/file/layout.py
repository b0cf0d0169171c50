"""Destinations that are a path on a disk, in one layout or another: one ordered file, a folder of parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conduit_dagster import storage
from conduit_dagster.recovery.errors import FatalError, from_os_error
from conduit_dagster.sdk import (
    ConnectorContext,
    Delivery,
    StagedDestination,
    Target,
)
from conduit_dagster.storage import sync_entry


class Layout(ABC):
    """How deliveries lie on disk. Its methods are :class:`Destination`'s, for a path that is known."""

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
        """The entries that lead to the path, once for each file or folder that is found there."""
        if inode != self._synced_inode:
            sync_entry(str(self._path))
            self._synced_inode = inode

    @abstractmethod
    def check(self) -> None:
        """Raises where it can't be written."""

    def staging(self, default: str) -> str:
        """Where parts are staged."""
        return default

    @abstractmethod
    def target(self, previous: Target | None) -> Target:
        """Where the next delivery goes."""

    @abstractmethod
    def holds(self, delivery: Delivery) -> bool:
        """Whether all bytes of the delivery are there."""

    @abstractmethod
    def publish(self, delivery: Delivery) -> Target:
        """Puts them there, durably."""

    @abstractmethod
    def settled(self, delivery: Delivery) -> Target:
        """Makes durable what is there."""

    def expected(self, delivery: Delivery) -> Target:
        """The target for the next delivery, once this one is there."""
        return delivery.target

    def retarget(self, delivery: Delivery) -> Target | None:
        """Another target for a delivery whose own one is lost; None where there is none."""
        return None


class LaidOut(StagedDestination):
    """What is the same for every layout: the path, and that the layout publishes."""

    def __init__(self, settings: Any, context: ConnectorContext, path: str) -> None:
        super().__init__(settings, context)
        self._path = self._local(context.resolve(path))
        self._layout = self._laid_out(self._path)

    @abstractmethod
    def _laid_out(self, path: Path) -> Layout:
        """The layout at this path."""

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
        """One path has one owner."""
        return str(self._path.resolve())

    @property
    def address(self) -> str:
        """The absolute path, as written: links are not followed."""
        return str(self._path.absolute())

    def check(self) -> None:
        """Tries to open the file or to make the folder."""
        self._layout.check()

    def staging(self, default: str) -> str:
        """Next to where it becomes visible, for a folder."""
        return self._layout.staging(default)

    def target(self, previous: Target | None) -> Target:
        """Where this delivery goes, exactly."""
        same = previous if previous and previous.get("path") == str(self._path) else None
        return self._layout.target(same)

    def holds(self, delivery: Delivery) -> bool:
        """Whether the bytes are there."""
        return self._layout.holds(delivery)

    def publish(self, delivery: Delivery) -> Target:
        """All of it or nothing that a later step could follow; may be repeated by anybody."""
        return self._layout.publish(delivery)

    def expected(self, delivery: Delivery) -> Target:
        """What :meth:`settled` will give, whether or not the delivery gets there."""
        return self._layout.expected(delivery)

    def settled(self, delivery: Delivery) -> Target:
        """Where the next delivery goes on."""
        return self._layout.settled(delivery)

    def retarget(self, delivery: Delivery) -> Target | None:
        """Only for one ordered file with ``if-changed: adopt``."""
        return self._layout.retarget(delivery)
