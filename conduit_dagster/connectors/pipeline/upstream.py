"""Upstream of a chained source: found by the planner in the project's files, and passed on in its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from conduit_dagster.msgspec_warmup import learn

PLUGIN = "pipeline"
"""As in ``state.readers``, which imports SQLAlchemy: validating files that chain nothing must not wait for that."""
KEY = "~upstream"
"""Setting that the planner adds. No file can contain it, since a file's settings are checked by name."""


class Upstream(msgspec.Struct, frozen=True):
    """A connector of another pipeline."""

    connector: str
    output: dict[str, str] | None = None
    """Settings of the ``file`` destination whose output is read; None for a source, whose log is read."""

    def encode(self) -> str:
        """Return the value of the setting."""
        return msgspec.json.encode(self).decode()


def upstream_of(extra: Mapping[str, Any] | None) -> Upstream | None:
    """Return the upstream that the planner found; None without the planner's setting."""
    text = (extra or {}).get(KEY)
    return None if text is None else msgspec.json.decode(text, type=Upstream)


learn(Upstream)
