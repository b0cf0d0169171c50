"""Base of destinations that write to a local path, in one of several layouts: an ordered file or a folder of parts.

With the preview of the rows in their files.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from conduit_dagster import storage
from conduit_dagster.connectors.file.listing import HIDDEN
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
        self._layout = self._layout_at(self._path)

    @abstractmethod
    def _layout_at(self, path: Path) -> PathLayout:
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


MOST_FILES: Final = 200
"""Maximum number of files to count rows in: more would take too long."""
_MOST_BYTES: Final = 32 << 20
_TAIL: Final = 1 << 16


def visible_files(path: Path) -> list[str]:
    """Return the files of a folder of parts by name, at most one more than :data:`MOST_FILES`; or the file itself.

    Hidden files are left out.
    """
    if not path.is_dir():
        return [str(path)] if path.is_file() else []
    return list(islice(_below(path), MOST_FILES + 1))


def newest_file(path: Path) -> str | None:
    """Return the last visible file by name, the newest of a folder of parts; None if there are none."""
    if path.is_dir():
        entries = sorted((entry for entry in path.iterdir() if entry.name[0] not in HIDDEN), reverse=True)
        return next((found for entry in entries if (found := newest_file(entry))), None)
    return str(path) if path.is_file() else None


def _below(folder: Path) -> Iterator[str]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name[0] in HIDDEN:
            continue
        if entry.is_dir():
            yield from _below(Path(entry.path))
        else:
            yield entry.path


def count_lines(path: Path) -> int | None:
    """Return the number of lines in all files; None for many files, or for more than 32 MB."""
    files = visible_files(path)
    if len(files) > MOST_FILES or sum(os.path.getsize(file) for file in files) > _MOST_BYTES:  # noqa: PTH202
        return None
    return sum(Path(file).read_bytes().count(b"\n") for file in files)


def last_documents(path: Path, rows: int, whole: bool) -> list[Mapping[str, Any]]:
    """Return the last lines of the newest file that are documents, in order.

    ``whole``: lines are complete records, whose payload is returned.
    """
    newest = newest_file(path)
    if newest is None:
        return []
    with Path(newest).open("rb") as file:
        begin = max(0, file.seek(0, os.SEEK_END) - _TAIL)
        file.seek(begin)
        lines = file.read().split(b"\n")
    # the first line may be cut off at its beginning; the last is empty, or still being written
    complete = lines[1 if begin else 0 : -1]
    found = [_document(line, whole) for line in complete[-rows:]]
    return [document for document in found if document is not None]


def _document(line: bytes, whole: bool) -> dict[str, Any] | None:
    try:
        found: Any = msgspec.json.decode(line)
        found = found["payload"]["after"] if whole else found
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return None
    return found if isinstance(found, dict) else None
