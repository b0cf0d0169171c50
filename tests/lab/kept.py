"""Values that positions refer to, without a state store."""

from __future__ import annotations

import hashlib

import pytest

from conduit_dagster.connectors import kept_lists
from conduit_dagster.sdk import KeptValues


class MemoryValues:
    """Values in memory, for tests that create thousands of positions."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.written = 0

    @property
    def access(self) -> KeptValues:
        """The access passed to a source."""
        return KeptValues(self.get, self.put)

    def get(self, digest: str) -> bytes | None:
        return self.values.get(digest)

    def put(self, value: bytes) -> str:
        digest = hashlib.sha256(value).hexdigest()
        self.values[digest] = value
        self.written += len(value)
        return digest


def leave_at(patch: pytest.MonkeyPatch, files: int) -> None:
    """Let this many finished files leave the position together."""
    patch.setattr(kept_lists, "LEAVES_AT", files)
