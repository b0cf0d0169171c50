"""What one ordered file and a folder of parts have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from conduit_dagster.recovery.errors import from_os_error
from conduit_dagster.sdk import ConnectorContext, Delivery, Target
from conduit_dagster.state.storage import sync_entry


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
