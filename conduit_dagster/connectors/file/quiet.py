"""How long files have been left alone by their writers."""

from __future__ import annotations

import time

from conduit_dagster.connectors.file.listing import Found


class Quiet:
    """Tells since when a file has not changed. Remembers files whose own time does not say so."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int, float]] = {}

    def seconds(self, found: Found) -> float:
        """Return the seconds since the file's last change.

        A remote file, or one whose time lies in the future, is quiet since it was first seen as it is now.
        """
        age = time.time_ns() - found.modified
        if found.modified and age >= 0:
            return age / 1e9
        known = self._seen.get(found.ident)
        if known is None or known[:2] != (found.size, found.modified):
            known = self._seen[found.ident] = (found.size, found.modified, time.monotonic())
        return time.monotonic() - known[2]
