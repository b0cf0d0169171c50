"""The ``file`` destination: one ordered file, or a folder of parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conduit_dagster.connectors.base import (
    ConnectorContext,
    Delivery,
    Keys,
    StagedDestination,
    Target,
    Writer,
    WriterTask,
)
from conduit_dagster.connectors.file.layout import Layout
from conduit_dagster.connectors.file.ordered import OrderedFile
from conduit_dagster.connectors.file.parts import PartsFolder
from conduit_dagster.connectors.file.settings import FileDestinationSettings, as_destination
from conduit_dagster.connectors.formats import make_format
from conduit_dagster.connectors.staged import StagedWriter
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state import storage


class FileDestination(StagedDestination):
    """Lines in the order of the source. After any crash every line is there once: a repeat rewrites the same bytes.

    With at-most-once nothing is repeated: a delivery that was cut off stays so, and the next begins on a new line.
    """

    name = "file"
    Settings = FileDestinationSettings
    strategies = frozenset({"exactly-once", "at-least-once", "at-most-once"})
    changes_records = False

    def __init__(self, settings: Any, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._settings = as_destination(settings)
        self._format = make_format(self._settings.format, self._settings.format_options)
        self.reads_keys = Keys.ALL if self._format.reads_key else Keys.NONE
        self._path = self._local(context.resolve(self._settings.path))
        self._layout = self._made_layout()

    def _made_layout(self) -> Layout:
        if self._is_folder():
            return PartsFolder(self._path, self.context)
        return OrderedFile(self._path, self.context, adopt=self._settings.if_changed == "adopt")

    def _local(self, path: str) -> Path:
        local = storage.local_path(path)
        if local is None:
            raise FatalError(
                f"the file destination writes local paths only, not {path}",
                code="file.not_local",
                fix="use a path that the driver and the workers share",
            )
        return local

    def _is_folder(self) -> bool:
        if self._settings.layout == "auto":
            return self._settings.path.endswith("/") or self._path.is_dir()
        return self._settings.layout == "folder"

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

    def writer(self, task: WriterTask) -> Writer:
        """Stages encoded lines."""
        return StagedWriter(task, self._format)

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
