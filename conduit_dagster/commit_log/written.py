"""What a task tells of a file of the log that it wrote."""

from __future__ import annotations

from typing import Any

import msgspec

from conduit_dagster.record import Mode
from conduit_dagster.state.log_store import LogPart


class Last(msgspec.Struct, frozen=True):
    """The last entry of a namespace in a file."""

    offset: int
    mode: Mode


class Written(msgspec.Struct, frozen=True):
    """A file that is complete, as the task tells the driver."""

    name: str
    first: int
    entries: int
    bytes: int
    sha256: str
    nacked: int
    namespaces: dict[str, Last]

    def appended(self, segment: int, position: Any) -> LogPart:
        """Its row in the manifest, as an append of consecutive offsets."""
        end = self.first + self.entries
        return LogPart(
            self.first, end, segment, self.name, self.entries, self.bytes, self.sha256, self.nacked, False, position
        )
