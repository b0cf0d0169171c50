"""References that keep entries of a log from compaction, besides the offsets of the pipeline's own consumers."""

from __future__ import annotations

import sqlalchemy as sa

from conduit_dagster.state.catch_ups import pending_from
from conduit_dagster.state.readers import readers_of


def held_from(connection: sa.Connection, pipeline: str, source: str) -> int | None:
    """Return the first offset of a log that another pipeline or a catch-up still needs; None if none needs any."""
    pending = pending_from(connection, pipeline, source)
    read = [reader.offset for reader in readers_of(connection, pipeline, source)]
    return min([*read, *([] if pending is None else [pending])], default=None)
