"""Time since a file last changed."""

from __future__ import annotations

import time

from conduit_dagster.connectors.file.listing import FoundFile


class Quiet:
    """Time since a file last changed. Tracks the files whose own modification time is no evidence."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int, float]] = {}

    def seconds(self, found: FoundFile) -> float:
        """Return the seconds since the file's last change.

        For a remote file, or one with a time in the future, counted from when it was first seen in its current state.
        """
        age = time.time_ns() - found.modified
        if found.modified and age >= 0:
            return age / 1e9
        known = self._seen.get(found.ident)
        if known is None or known[:2] != (found.size, found.modified):
            known = self._seen[found.ident] = (found.size, found.modified, time.monotonic())
        return time.monotonic() - known[2]
