"""Labels of a file source's records: metadata with the file's header, and position prefix."""

from __future__ import annotations

from typing import Final

from conduit_dagster.connectors.collection_setting import CollectionPattern
from conduit_dagster.connectors.file.file_state import TrackedFile
from conduit_dagster.connectors.file.line_reader import LineLabels
from conduit_dagster.connectors.file.opened import OpenFile
from conduit_dagster.connectors.file.settings import FileSourceSettings
from conduit_dagster.connectors.path_rules import shown_path
from conduit_dagster.record import COLLECTION, FILE_HEADER, MODE, READ_AT, SOURCE_CONNECTOR_ID
from conduit_dagster.sdk import ConnectorContext

_MARK: Final = "\ufeff"
_PIECE: Final = 4_096


def header_text(opened: OpenFile, max_line: int) -> str:
    """Return the header without its line end and byte-order mark; bytes that are not UTF-8 become U+FFFD."""
    data = b""
    while len(data) < max_line and (piece := opened.read_at(len(data), _PIECE)):
        line, end, _ = piece.partition(b"\n")
        data += line
        if end:
            break
    return data.removesuffix(b"\r").decode(errors="replace").removeprefix(_MARK)


class FileLabels:
    """Labels of one source's records."""

    def __init__(self, context: ConnectorContext, settings: FileSourceSettings, many: bool) -> None:
        """``many``: whether the path means a folder or a glob."""
        self._context, self._settings, self._many = context, settings, many
        self.collections = CollectionPattern(settings.collection)

    def of(self, file: TrackedFile, url: str, mode: str, header: str = "") -> LineLabels:
        """Return the labels of a file at a URL, with paths as written; empty ``mode`` or ``header`` means none."""
        collection = self.collection(file)
        metadata = {
            SOURCE_CONNECTOR_ID: self._context.full_id,
            **({COLLECTION: collection} if collection else {}),
            **({MODE: mode} if mode else {}),
            "file.path": shown_path(self._context, self._settings.path, url) if self._many else self._settings.path,
            **({FILE_HEADER: header} if header else {}),
            READ_AT: str(self._context.clock.now_ns),
        }
        return LineLabels(metadata, self._prefix(file))

    def collection(self, file: TrackedFile) -> str:
        """Return the file's collection. Raises ``FatalError`` (``source.collection_unsafe``)."""
        return self.collections.of(self._name(file))

    def unchecked(self, file: TrackedFile) -> str:
        """Return the file's collection, or the unsafe text: reading earlier files must not fail because of it."""
        return self.collections.unchecked(self._name(file))

    def _name(self, file: TrackedFile) -> str:
        # a followed file keeps its collection when it is rotated, which changes its name
        return (file.name if self._many else self._settings.path).rsplit("/", 1)[-1]

    def _prefix(self, file: TrackedFile) -> str:
        """Return the prefix that makes positions unique in the source: empty for the first file of a single path."""
        if self._many:
            return f"{file.number}:{file.name}:"
        return f"{file.number}:" if file.number else ""
