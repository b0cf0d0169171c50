"""Changes already contained in the copy: they are left out of the stream (DELIVERY.md, Units: none twice)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from conduit_dagster.connectors.postgres.source_position import PostgresPosition, Region, SnapshotBound

Verdict = Literal["keep", "drop", "create", "delete"]
"""Treatment of a change. An update of a key that only one of two copies has seen becomes a create or a delete."""
RowKey = Sequence[str]
"""Values of the key columns, as text."""
Compare = Callable[[str, RowKey, RowKey], bool]
"""Whether the first key of a table is less than or equal to the second, in the table's own order."""
_HALF = 1 << 31
_MASK = (1 << 32) - 1


class SeenTransactions:
    """The committed transactions that a snapshot sees."""

    def __init__(self, bound: SnapshotBound) -> None:
        _, xmax, running = bound.seen.split(":")
        self._xmax = int(xmax) & _MASK
        self._running = frozenset(int(one) & _MASK for one in running.split(",") if one)

    def __contains__(self, xid: int) -> bool:
        """Return whether a committed transaction is visible; ``xid`` has 32 bits and is at most 2^31 away."""
        # exact, unlike a comparison of LSNs: a commit is in the WAL before other sessions can see it
        return (xid - self._xmax) & _MASK >= _HALF and xid not in self._running


class _Part(NamedTuple):
    upto: list[str] | None
    seen: SeenTransactions | None


class SeenChanges:
    """Changes that the copies of a position have seen; ``compare`` is only called for a table copied in several
    parts."""

    def __init__(self, position: PostgresPosition, compare: Compare) -> None:
        known = {name: SeenTransactions(bound) for name, bound in position.snapshots.items()}
        self._parts = {
            table: [_part(region, known) for region in regions]
            for table, regions in position.copied.items()
            if any(region.snapshot for region in regions)
        }
        self._compare = compare

    def has(self, table: str) -> bool:
        """Return whether a copy may have seen changes of a table."""
        return table in self._parts

    def is_in_parts(self, table: str) -> bool:
        """Return whether a table was copied in parts, under several snapshots."""
        return len(self._parts[table]) > 1

    def verdict(self, table: str, xid: int, old: RowKey | None, new: RowKey | None) -> Verdict:
        """Return the treatment of a change of a row from key ``old`` to key ``new``; None: there is no such row."""
        parts = self._parts[table]
        if len(parts) == 1:
            return "drop" if _saw(parts[0], xid) else "keep"
        saw_old = None if old is None else self._saw(table, old, xid)
        saw_new = None if new is None else self._saw(table, new, xid)
        if saw_old is None or saw_new is None or saw_old == saw_new:
            return "drop" if saw_old or saw_new else "keep"
        # the row moved from one part to another: one copy was made before the move, the other after it
        return "create" if saw_old else "delete"

    def verdict_on_all(self, table: str, xid: int) -> Verdict | None:
        """Return the treatment of a truncate; None if some copies have seen it and others have not."""
        seen = {_saw(part, xid) for part in self._parts[table]}
        return None if len(seen) > 1 else "drop" if seen.pop() else "keep"

    def _saw(self, table: str, key: RowKey, xid: int) -> bool:
        for part in self._parts[table]:
            if part.upto is None or self._compare(table, key, part.upto):
                return _saw(part, xid)
        return False


def _part(region: Region, known: dict[str, SeenTransactions]) -> _Part:
    return _Part(region.upto, known[region.snapshot] if region.snapshot else None)


def _saw(part: _Part, xid: int) -> bool:
    return part.seen is not None and xid in part.seen
