"""Lookup of the log offset at which a time begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from conduit_dagster.engine.operate.operator_errors import refused

if TYPE_CHECKING:
    from conduit_dagster.engine.operate.source_positions import LogView


def offset_since(log: LogView, at_ns: int, as_kept: bool = False) -> int:
    """Return the offset of the first entry logged at or after a time; the end of the log if none was.

    Reads the times of all entries before it. If the clock was set back, the first such entry counts: earlier entries
    may be included, but none is left out. Raises ``FatalError`` (``log.gone``) if older entries of that time may have
    been removed, unless the remaining ones suffice (``as_kept``).
    """
    first, end = log.whole_from(), log.state().next_offset
    found = _first_since(log, first, -(-at_ns // 1000))
    place = end if found is None else found
    if first and place == first and not as_kept:
        raise refused(
            "log.gone",
            f"the log of {log.source} holds every record from offset {first} on; some of those before are gone, and may"
            " have been logged after that time",
            f"rewind to offset {first}, or to a later time; delivery.log-retention keeps them longer",
        )
    return place


def _first_since(log: LogView, start: int, at_us: int) -> int | None:
    for batch in log.blocks(start, None, ("timestamp",)):
        later = batch.column("timestamp").cast(pa.int64()).to_numpy() >= at_us
        if later.any():
            return int(batch.column("offset")[int(later.argmax())].as_py())
    return None
