"""The ``file`` destination: one ordered file, or a folder of parts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conduit_dagster.connectors.file.ordered import OrderedFile
from conduit_dagster.connectors.file.output_history import moved, planned, published, without_history
from conduit_dagster.connectors.file.output_layout import PathDestination, PathLayout, count_lines, last_documents
from conduit_dagster.connectors.file.parts import PartsFolder
from conduit_dagster.connectors.file.settings import FileDestinationSettings
from conduit_dagster.connectors.formats import OpenCdcJson, PayloadAsJson, PayloadJson, Template, make_format
from conduit_dagster.sdk import (
    ConnectorContext,
    Delivery,
    Keys,
    StagedWriter,
    Strategy,
    Target,
    Writer,
    WriterTask,
)


class FileDestination(PathDestination):
    """Lines in source order. After any crash every line is there exactly once: a repeat rewrites the same bytes.

    With at-most-once nothing is repeated: an interrupted delivery stays incomplete, and the next begins on a new line.
    """

    name = "file"
    Settings = FileDestinationSettings
    settings: FileDestinationSettings
    strategies = frozenset({"exactly-once", "at-least-once", "at-most-once"})
    changes_records = False
    takes_payloads = True

    def __init__(self, settings: FileDestinationSettings, context: ConnectorContext) -> None:
        self._format = make_format(settings.format, settings.format_options)
        self.reads_keys = Keys.ALL if self._format.reads_key else Keys.NONE
        super().__init__(settings, context, settings.path)

    @classmethod
    def strategies_with(cls, settings: Mapping[str, str]) -> frozenset[Strategy]:
        """Return all strategies, without exactly-once for ``if-changed: adopt``.

        If another process wrote over a half-written delivery, adopt would write the whole delivery again after it.
        """
        adopts = settings.get("if-changed") == "adopt"
        return cls.strategies - {"exactly-once"} if adopts else cls.strategies

    def row_count(self) -> int | None:
        """Return the number of lines; None if a record may take several."""
        return None if isinstance(self._format, Template) else count_lines(self._path)

    def preview(self, rows: int) -> Sequence[Mapping[str, Any]]:
        """Return the payloads of the newest lines that are documents."""
        if isinstance(self._format, OpenCdcJson | PayloadJson | PayloadAsJson):
            return last_documents(self._path, rows, whole=isinstance(self._format, OpenCdcJson))
        return ()

    def _layout_at(self, path: Path) -> PathLayout:
        if self._is_folder(path):
            return PartsFolder(path, self.context)
        return OrderedFile(path, self.context, adopt=self.settings.if_changed == "adopt")

    def _is_folder(self, path: Path) -> bool:
        if self.settings.layout == "auto":
            # unlike Path.is_dir, never raises: a path that can't be examined is reported when it is opened
            return self.settings.path.endswith("/") or os.path.isdir(path)  # noqa: PTH112
        return self.settings.layout == "folder"

    def target(self, previous: Target | None) -> Target:
        """Return the exact target of this delivery, and the format of its lines."""
        made = super().target(without_history(previous))
        return planned(made, previous or {}, self.settings.format)

    def retarget(self, delivery: Delivery) -> Target | None:
        """Return another target, only for one ordered file with ``if-changed: adopt``."""
        made = super().retarget(delivery)
        return made and moved(made, delivery.target)

    def publish(self, delivery: Delivery) -> Target:
        """Publish all of the delivery, or nothing that a later step could follow; any process may repeat it."""
        return published(super().publish(delivery), delivery)

    def settled(self, delivery: Delivery) -> Target:
        """Make the delivery durable and return the target after it."""
        return published(super().settled(delivery), delivery)

    def expected(self, delivery: Delivery) -> Target:
        """Return the future result of :meth:`settled`, whether or not the delivery succeeds."""
        return published(super().expected(delivery), delivery)

    def writer(self, task: WriterTask) -> Writer:
        """Return a writer that stages encoded lines."""
        return StagedWriter(task, self._format)
