"""Positions of the ``postgres`` source: an LSN, and how far each table was copied under which snapshot.

Changes already contained in a copy are left out of the stream (DELIVERY.md, Units: none twice).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from conduit_dagster.msgspec_warmup import learn


def parse_lsn(text: str) -> int:
    """Parse an LSN such as ``0/16B3748`` to a number."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def format_lsn(number: int) -> str:
    """Return an LSN as PostgreSQL writes it."""
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


class StreamPoint(NamedTuple):
    """A point in the stream of changes, in which transactions are in commit order and their changes in the order
    made."""

    lsn: int
    """All transactions whose commit record begins before this LSN lie before the point."""
    changes: int = 0
    """Number of changes before the point of the transaction whose commit record begins exactly at ``lsn``."""


class Region(msgspec.Struct, frozen=True, array_like=True):
    """Copied key range of a table, in key order: the rows after the previous region, up to a key."""

    upto: list[str] | None
    """Key of the last row, as text; None: up to the end of the table."""
    snapshot: str = ""
    """Name of the copy's snapshot in ``PostgresPosition.snapshots``; empty: the stream has passed everything that it
    saw."""


class SnapshotBound(msgspec.Struct, frozen=True, array_like=True):
    """The transactions that a snapshot sees."""

    seen: str
    """``pg_snapshot`` as text: ``xmin:xmax:xip,…``."""
    until: str
    """LSN before which all transactions that the snapshot sees have committed."""


class PostgresPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """Position of the source: a JSON object, ``{}`` before the first read."""

    server: str = ""
    """The cluster's system identifier."""
    lsn: str = ""
    """Empty: no changes are read (``initial_only``), or the slot does not exist yet."""
    index: int = 0
    timeline: int = 0
    """Timeline of the WAL up to ``lsn``; 0: unknown."""
    everything: bool = False
    """All tables of the schema are read and published from their creation on, so that the stream contains new ones."""
    copied: dict[str, list[Region]] = {}
    """By ``schema.table``; a missing table is not copied yet or, depending on ``snapshotMode``, never."""
    snapshots: dict[str, SnapshotBound] = {}
    at_ms: int = 0
    """Milliseconds since 1970 by the server's clock: all commits up to then lie before the position. 0: unknown."""
    shapes: dict[str, str] = {}
    """By ``schema.table``: digest of the columns that changes must have; a missing table may have any."""
    orders: dict[str, list[str]] = {}
    """By table that is being copied or polled: OID, and the columns in whose order rows are read, with their types."""
    oids: dict[str, str] = {}
    """By table that was copied completely: its OID, which another table of the same name does not have."""
    followed: list[str] = []
    """Tables whose initial copy is complete and whose new rows are found by polling."""
    again: int = 0
    """How often copied tables were marked as not copied: their rows come again, under other delivery hashes."""

    @property
    def point(self) -> StreamPoint:
        """The point in the stream."""
        return StreamPoint(parse_lsn(self.lsn) if self.lsn else 0, self.index)

    @property
    def renewed_at(self) -> int:
        """The next LSN at which a step must end, since a stream has to begin there; 0: none.

        Before 2025's releases, a stream that has decoded a transaction from before its table was published sends no
        later changes of that table either: all such transactions have ended when the table's copy begins.
        """
        lsn = self.point.lsn
        return min((until for one in self.snapshots.values() if (until := parse_lsn(one.until)) > lsn), default=0)

    @property
    def place(self) -> dict[str, Any]:
        """The position without snapshots, which are specific to a run."""
        copied = {table: regions[-1].upto for table, regions in self.copied.items() if regions}
        again = {"again": self.again} if self.again else {}
        return {"lsn": self.lsn, "index": self.index, "copied": copied, **again}

    def is_copied(self, table: str) -> bool:
        """Return whether all rows of a table were copied."""
        regions = self.copied.get(table)
        return bool(regions) and regions[-1].upto is None

    def is_whole(self, table: str) -> bool:
        """Return whether the initial copy of a table is complete."""
        return self.is_copied(table) or table in self.followed

    def copied_upto(self, table: str) -> list[str] | None:
        """Return the key of the last copied row; None if there is none yet, or if the table is copied completely."""
        regions = self.copied.get(table)
        return regions[-1].upto if regions else None

    def with_region(self, table: str, region: Region) -> PostgresPosition:
        """Return the position after another part of a table."""
        # without a stream no change is compared with the snapshots of regions: only the end matters
        regions = self.copied.get(table, []) if self.lsn else []
        if regions and regions[-1].snapshot == region.snapshot:
            regions = regions[:-1]
        return msgspec.structs.replace(self, copied={**self.copied, table: [*regions, region]})

    def with_whole(self, tables: Iterable[str]) -> PostgresPosition:
        """Return the position with tables marked as needing no copy, because the stream contains all of their rows."""
        told = {table: [Region(None)] for table in tables if table not in self.copied}
        return msgspec.structs.replace(self, copied={**self.copied, **told}) if told else self

    def with_order(self, table: str, order: list[str] | None) -> PostgresPosition:
        """Return the position with the order of a table's rows; None: the table is copied completely."""
        orders = {name: known for name, known in self.orders.items() if name != table}
        return msgspec.structs.replace(self, orders=orders if order is None else {**orders, table: order})

    def with_oids(self, oids: Mapping[str, str]) -> PostgresPosition:
        """Return the position with the OIDs of tables that were copied completely."""
        return msgspec.structs.replace(self, oids={**self.oids, **oids})

    def without(self, tables: Iterable[str]) -> PostgresPosition:
        """Return the position with tables marked as not copied yet."""
        gone = self.copied.keys() & set(tables)
        copied = {table: regions for table, regions in self.copied.items() if table not in gone}
        orders = {table: order for table, order in self.orders.items() if table not in gone}
        oids = {table: oid for table, oid in self.oids.items() if table not in gone}
        again = self.again + bool(gone)
        return msgspec.structs.replace(self, copied=copied, orders=orders, oids=oids, again=again)

    def at(self, lsn: int, index: int = 0) -> PostgresPosition:
        """Return the position at another point of the stream."""
        return msgspec.structs.replace(self, lsn=format_lsn(lsn), index=index)

    def in_stream_of(self, other: PostgresPosition) -> PostgresPosition:
        """Return the position with the server and the place in the stream of another one."""
        return msgspec.structs.replace(self, server=other.server, lsn=other.lsn, timeline=other.timeline)

    def on(self, timeline: int) -> PostgresPosition:
        """Return the position on a timeline whose history has its LSN."""
        return msgspec.structs.replace(self, timeline=timeline)

    def with_followed(self, tables: Iterable[str]) -> PostgresPosition:
        """Return the position with the initial copy of tables marked as complete."""
        followed = sorted({*self.followed, *tables})
        return self if followed == self.followed else msgspec.structs.replace(self, followed=followed)

    def as_of(self, time: float | None) -> PostgresPosition:
        """Return the position with a time (seconds since 1970) up to which all commits lie before it."""
        return self if time is None else msgspec.structs.replace(self, at_ms=int(time * 1000))

    def with_shapes(self, shapes: Mapping[str, str]) -> PostgresPosition:
        """Return the position with the columns that changes must have; known ones are kept."""
        known = {table: self.shapes.get(table, shape) for table, shape in shapes.items()}
        return msgspec.structs.replace(self, shapes=known)

    def settled(self) -> PostgresPosition:
        """Return the position without the snapshots that the stream has passed."""
        lsn = self.point.lsn
        open_ones = {name: one for name, one in self.snapshots.items() if parse_lsn(one.until) > lsn}
        if len(open_ones) == len(self.snapshots):
            return self
        copied = {table: _settled(regions, open_ones) for table, regions in self.copied.items()}
        used = {region.snapshot for regions in copied.values() for region in regions}
        kept = {name: one for name, one in open_ones.items() if name in used}
        return msgspec.structs.replace(self, copied=copied, snapshots=kept)

    def to_json(self) -> dict[str, Any]:
        """Return the position as a JSON value."""
        return msgspec.to_builtins(self)


def _settled(regions: list[Region], open_ones: dict[str, SnapshotBound]) -> list[Region]:
    made: list[Region] = []
    for region in regions:
        name = region.snapshot if region.snapshot in open_ones else ""
        if made and made[-1].snapshot == name:
            made.pop()
        made.append(Region(region.upto, name))
    return made


def parse_position(value: Any) -> PostgresPosition:
    """Parse a position from the state store. Raises ``msgspec.ValidationError`` for any other value."""
    return msgspec.convert(value, PostgresPosition)


learn(PostgresPosition)


Verdict = Literal["keep", "drop", "create", "delete"]
"""Treatment of a change. An update of a key that only one of two copies has seen becomes a create or a delete."""
RowKey = Sequence[str]
"""Values of the key columns, as text."""
Compare = Callable[[str, RowKey, RowKey], bool]
"""Whether the first key of a table is less than or equal to the second, in the table's own order."""
_HALF = 1 << 31
_MASK = (1 << 32) - 1


class _SeenTransactions:
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
    seen: _SeenTransactions | None


class SeenChanges:
    """Changes that the copies of a position have seen; ``compare`` is only called for a transaction that some of a
    table's copies have seen and others have not."""

    def __init__(self, position: PostgresPosition, compare: Compare) -> None:
        known = {name: _SeenTransactions(bound) for name, bound in position.snapshots.items()}
        self._parts = {
            table: [_Part(region.upto, known[region.snapshot] if region.snapshot else None) for region in regions]
            for table, regions in position.copied.items()
            if any(region.snapshot for region in regions)
        }
        self._compare = compare

    def has(self, table: str) -> bool:
        """Return whether a copy may have seen changes of a table."""
        return table in self._parts

    def verdict(self, table: str, xid: int, old: RowKey | None, new: RowKey | None) -> Verdict:
        """Return the treatment of a change of a row from key ``old`` to key ``new``; None: there is no such row."""
        saw_old = None if old is None else self._saw(table, old, xid)
        saw_new = None if new is None else self._saw(table, new, xid)
        if saw_old is None or saw_new is None or saw_old == saw_new:
            return "drop" if saw_old or saw_new else "keep"
        # the row moved from one part to another: one copy was made before the move, the other after it
        return "create" if saw_old else "delete"

    def verdict_on_all(self, table: str, xid: int) -> Verdict | None:
        """Return the treatment of all changes of a transaction; None if some copies have seen them and others have
        not."""
        seen = {_saw(part, xid) for part in self._parts[table]}
        return None if len(seen) > 1 else "drop" if seen.pop() else "keep"

    def _saw(self, table: str, key: RowKey, xid: int) -> bool:
        for part in self._parts[table]:
            if part.upto is None or self._compare(table, key, part.upto):
                return _saw(part, xid)
        return False


def _saw(part: _Part, xid: int) -> bool:
    return part.seen is not None and xid in part.seen
