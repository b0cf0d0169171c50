"""Positions of the ``postgres`` source: a place in the WAL, and how far each table was copied under which snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from conduit_dagster.msgspec_warmup import learn


def parse_lsn(text: str) -> int:
    """Return the number of an LSN such as ``0/16B3748``."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def format_lsn(number: int) -> str:
    """Return an LSN as PostgreSQL writes it."""
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


class StreamPoint(NamedTuple):
    """A place in the stream of changes: transactions in the order of their commits, changes as they were made."""

    lsn: int
    """Every transaction whose commit record begins before it lies before this point."""
    changes: int = 0
    """And so many changes of the transaction whose commit record begins exactly there."""


class Region(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a table that were copied, in the order of its key: those behind the region before, up to a key."""

    upto: list[str] | None
    """The last row's key, as text; None: all rows to the table's end."""
    snapshot: str = ""
    """Name in ``PostgresPosition.snapshots`` of what the copy saw; empty: the stream is beyond all that it saw."""


class SnapshotBound(msgspec.Struct, frozen=True, array_like=True):
    """What a snapshot saw of the transactions."""

    seen: str
    """``pg_snapshot`` as text: ``xmin:xmax:xip,…``."""
    until: str
    """An LSN: every transaction that it sees commits before."""


class PostgresPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the source is. A JSON object; ``{}`` before anything was looked at."""

    server: str = ""
    """The cluster's system identifier."""
    lsn: str = ""
    """Empty: no changes are read (``initial_only``), or the slot was not made yet."""
    index: int = 0
    everything: bool = False
    """All tables of the schema were read so far, and published from their creation on: the stream tells new ones."""
    copied: dict[str, list[Region]] = {}
    """By ``schema.table``; a table that is not here is not copied yet, or never, as ``snapshotMode`` says."""
    snapshots: dict[str, SnapshotBound] = {}
    at_ms: int = 0
    """Milliseconds since 1970 by the server's clock: all that was committed by then lies before. 0: unknown."""
    shapes: dict[str, str] = {}
    """By ``schema.table``: digest of the columns that its changes must have; a table that is not here may have any."""
    orders: dict[str, list[str]] = {}
    """Of tables that are being copied, or polled: OID, and the columns in whose order rows are read."""
    followed: list[str] = []
    """Tables whose first copy is over, and whose further rows are found by polling."""

    @property
    def point(self) -> StreamPoint:
        """Return the place in the stream."""
        return StreamPoint(parse_lsn(self.lsn) if self.lsn else 0, self.index)

    @property
    def place(self) -> dict[str, Any]:
        """Where it is, without what only this run's snapshots saw."""
        copied = {table: regions[-1].upto for table, regions in self.copied.items() if regions}
        return {"lsn": self.lsn, "index": self.index, "copied": copied}

    def is_copied(self, table: str) -> bool:
        """Return whether all rows of a table were copied."""
        regions = self.copied.get(table)
        return bool(regions) and regions[-1].upto is None

    def is_whole(self, table: str) -> bool:
        """Return whether the first copy of a table is over."""
        return self.is_copied(table) or table in self.followed

    def copied_upto(self, table: str) -> list[str] | None:
        """Return the key of the last row that was copied; None if there is none yet, or if the table is copied."""
        regions = self.copied.get(table)
        return regions[-1].upto if regions else None

    def with_region(self, table: str, region: Region) -> PostgresPosition:
        """Return the position after a further part of a table."""
        # without a stream no change is compared with what a region's snapshot saw: only the end counts
        regions = self.copied.get(table, []) if self.lsn else []
        if regions and regions[-1].snapshot == region.snapshot:
            regions = regions[:-1]
        return msgspec.structs.replace(self, copied={**self.copied, table: [*regions, region]})

    def with_whole(self, tables: Iterable[str]) -> PostgresPosition:
        """Return the position where tables that are not copied need no copy: the stream tells all of them."""
        told = {table: [Region(None)] for table in tables if table not in self.copied}
        return msgspec.structs.replace(self, copied={**self.copied, **told}) if told else self

    def with_order(self, table: str, order: list[str] | None) -> PostgresPosition:
        """Return the position with what a table's rows are ordered by; None: it is copied as a whole."""
        orders = {name: known for name, known in self.orders.items() if name != table}
        return msgspec.structs.replace(self, orders=orders if order is None else {**orders, table: order})

    def without(self, tables: Iterable[str]) -> PostgresPosition:
        """Return the position where tables are not copied yet."""
        gone = self.copied.keys() & set(tables)
        copied = {table: regions for table, regions in self.copied.items() if table not in gone}
        return msgspec.structs.replace(self, copied=copied) if gone else self

    def at(self, lsn: int, index: int = 0) -> PostgresPosition:
        """Return the position at another place in the stream."""
        return msgspec.structs.replace(self, lsn=format_lsn(lsn), index=index)

    def with_followed(self, tables: Iterable[str]) -> PostgresPosition:
        """Return the position where the first copy of tables is over."""
        followed = sorted({*self.followed, *tables})
        return self if followed == self.followed else msgspec.structs.replace(self, followed=followed)

    def as_of(self, time: float | None) -> PostgresPosition:
        """Return the position with the time (seconds since 1970) by which all that was committed lies before it."""
        return self if time is None else msgspec.structs.replace(self, at_ms=int(time * 1000))

    def with_shapes(self, shapes: Mapping[str, str]) -> PostgresPosition:
        """Return the position with the columns that changes must have; those that it knows already stay."""
        known = {table: self.shapes.get(table, shape) for table, shape in shapes.items()}
        return msgspec.structs.replace(self, shapes=known)

    def settled(self) -> PostgresPosition:
        """Return the position without the snapshots that the stream is beyond."""
        lsn = self.point.lsn
        open_ones = {name: one for name, one in self.snapshots.items() if parse_lsn(one.until) > lsn}
        if len(open_ones) == len(self.snapshots):
            return self
        copied = {table: _settled(regions, open_ones) for table, regions in self.copied.items()}
        used = {region.snapshot for regions in copied.values() for region in regions}
        kept = {name: one for name, one in open_ones.items() if name in used}
        return msgspec.structs.replace(self, copied=copied, snapshots=kept)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
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
    """Parse a position from the state store. Raises ``msgspec.ValidationError`` for what is none."""
    return msgspec.convert(value, PostgresPosition)


learn(PostgresPosition)
