"""The connector that a chained source reads: found in the project's files, and added to the source's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from conduit_dagster.msgspec_warmup import learn

PLUGIN = "pipeline"
"""As ``state.readers`` has it, which needs SQLAlchemy: validating files that chain nothing must not wait for that."""
KEY = "~upstream"
"""Setting added while binding. No file can contain it, because a file's settings are checked by name."""


class Upstream(msgspec.Struct, frozen=True):
    """A connector of another pipeline."""

    connector: str
    output: dict[str, str] | None = None
    """Of a destination the settings of the file that it writes; None: it is a source, of which the log is read."""

    def encode(self) -> str:
        """Encode as a setting's value."""
        return msgspec.json.encode(self).decode()


def upstream_of(extra: Mapping[str, Any] | None) -> Upstream | None:
    """Return the connector that was found while binding; None before."""
    text = (extra or {}).get(KEY)
    return None if text is None else msgspec.json.decode(text, type=Upstream)


learn(Upstream)
