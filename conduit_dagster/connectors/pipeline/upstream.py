"""What a chained source reads, as the files of the project say: found by the planner, and a part of its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from conduit_dagster.msgspec_warmup import learn

PLUGIN = "pipeline"
"""As ``state.readers`` has it, which needs SQLAlchemy: validating files that chain nothing must not wait for that."""
KEY = "~upstream"
"""The setting that the planner adds; no file can write it, for a file's settings are checked by name."""


class Upstream(msgspec.Struct, frozen=True):
    """A connector of another pipeline."""

    connector: str
    output: dict[str, str] | None = None
    """Of a destination the settings of the file that it writes; None: it is a source, of which the log is read."""

    def encode(self) -> str:
        """As a setting's value."""
        return msgspec.json.encode(self).decode()


def upstream_of(extra: Mapping[str, Any] | None) -> Upstream | None:
    """What the planner found; None where nobody asked it."""
    text = (extra or {}).get(KEY)
    return None if text is None else msgspec.json.decode(text, type=Upstream)


learn(Upstream)
