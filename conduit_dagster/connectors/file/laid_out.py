"""Destinations that are a path on a disk, in one layout or another."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

from conduit_dagster.connectors.file.layout import Layout
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import ConnectorContext, Delivery, StagedDestination, Target
from conduit_dagster.state import storage


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
