"""Planning of initial copies: the tables still to copy, and the share of the next step."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from conduit_dagster.connectors.postgres.connection import Connection
from conduit_dagster.connectors.postgres.copied_rows import CopyOperation, TablePart
from conduit_dagster.connectors.postgres.copy_snapshot import CopySnapshot, KeyedTable, KeyRange
from conduit_dagster.connectors.postgres.partitions import (
    partitioned_tables,
    partitions_not_logged,
    partitions_with_own_key,
    unidentified_partitions,
)
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.source_errors import SourceErrors
from conduit_dagster.connectors.postgres.source_position import PostgresPosition, Region
from conduit_dagster.connectors.postgres.source_reader import CopyDetail, as_json, open_session
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings
from conduit_dagster.connectors.postgres.source_tables import (
    NO_LABEL,
    KeyColumn,
    PublishedTable,
    columns_of,
    key_of,
    labels_of,
    oid_of,
    published_tables,
    rows_of,
    tables_with_generated_keys,
    tables_without_identity,
)
from conduit_dagster.sdk import Limit, Split

_MOST_TABLES = 100
"""Tables of a step at most: each of its splits holds a position, which names all tables that are copied so far."""


class TableCopies:
    """Copies of one run. Their snapshot is taken at the first copy and held until the last one is delivered."""

    def __init__(self, settings: PostgresSourceSettings, errors: SourceErrors, application: str) -> None:
        self._settings = settings
        self._errors = errors
        self._application = application
        self._tables: list[TableName] = []
        self._snapshot: CopySnapshot | None = None
        self._taken: set[str] = set()
        self._published: dict[TableName, PublishedTable] = {}

    def begin(self, connection: Connection, tables: Sequence[TableName], position: PostgresPosition) -> bool:
        """Note the tables to copy; return whether a copy starts from its first row. Raises ``FatalError`` for a table
        without a key.

        After an interrupted copy returns False: the stream has not moved since.
        """
        self.require_keys(connection, tables, position)
        self._require_order(connection, position)
        return any(str(table) not in position.copied for table in self._tables)

    def require_keys(self, connection: Connection, tables: Sequence[TableName], position: PostgresPosition) -> None:
        """Note the tables to copy. Raise ``FatalError`` for a table that must not be published: without a usable key
        PostgreSQL would refuse its updates from then on."""
        wanted = [] if self._settings.snapshot_mode == "never" else list(tables)
        self._tables = [table for table in wanted if not position.is_copied(str(table))]
        self._require_keys(connection, tables)
        if self._settings.published_by and (without := tables_without_identity(connection).intersection(self._tables)):
            raise self._errors.no_identity(sorted(map(str, without)))
        if self._settings.published_by:
            self._require_partitions(connection, tables)

    def _require_partitions(self, connection: Connection, tables: Sequence[TableName]) -> None:
        """Raise ``FatalError`` for a partition whose changes are not sent, or without columns of its table's key."""
        for table in partitioned_tables(connection).intersection(tables):
            if partitions := partitions_not_logged(connection, table):
                raise self._errors.partitions_not_logged(str(table), partitions)
            key = key_of(connection, table)
            if key and (partitions := unidentified_partitions(connection, table, key)):
                raise self._errors.partitions_unidentified(str(table), partitions)
            if not key and (partitions := partitions_with_own_key(connection, table)):
                raise self._errors.partitions_with_own_key(str(table), partitions)

    def _require_order(self, connection: Connection, position: PostgresPosition) -> None:
        """Raise ``FatalError`` for a partly copied table that was recreated or has another key, or one of another type,
        so that the last key is no longer a position in its order."""
        for table in self._tables:
            known, upto = position.orders.get(str(table)), position.copied_upto(str(table))
            if known and upto and not _is_order(connection, self._ordered(connection, table), known, upto):
                raise self._errors.order_changed(str(table))

    def _require_keys(self, connection: Connection, tables: Sequence[TableName]) -> None:
        """Raise ``FatalError`` for a table to copy without a key, and for any whose records would lack a part of it."""
        if without := [str(table) for table in self._tables if not key_of(connection, table)]:
            message = f"a table without a primary key can't be copied: {', '.join(without)}"
            fix = (
                "add one, or ALTER TABLE … REPLICA IDENTITY USING INDEX …; or leave the table out of the setting tables"
            )
            raise self._errors.fatal(message, "postgres.no_key", fix)
        self._find_published(connection)
        generated = tables_with_generated_keys(connection)
        for table in (table for table in tables if table in generated or table in self._tables):
            names = {name for name, _ in self._columns(connection, table)}
            if lacks := [column.name for column in key_of(connection, table) if column.name not in names]:
                raise self._errors.key_not_sent(str(table), lacks)

    def _find_published(self, connection: Connection) -> None:
        publication = self._settings.published_by
        self._published = published_tables(connection, publication) if publication else {}

    def _columns(self, connection: Connection, table: TableName) -> list[tuple[str, int]]:
        """Return the columns of a table's records: those that its changes have."""
        published = self._published.get(table)
        return published.columns if published else columns_of(connection, table)

    def _width(self, snapshot: CopySnapshot, keyed: KeyedTable, after: list[str] | None) -> int:
        names = [name for name, _ in self._columns(snapshot.connection, keyed.name)]
        return snapshot.width(keyed, names, after)

    def further(self, position: PostgresPosition, limit: Limit) -> PostgresPosition:
        """Return the position after the next rows; ``position`` itself if everything is copied."""
        left = limit.records
        for table in [table for table in self._tables if not position.is_copied(str(table))][:_MOST_TABLES]:
            snapshot = self._held()
            keyed, after = self._ordered(snapshot.connection, table), position.copied_upto(str(table))
            rows = min(left, max(1, limit.bytes // self._width(snapshot, keyed, after)))
            cut = snapshot.next_cut(keyed, after, rows)
            position = position.with_region(str(table), Region(cut.upto, snapshot.name))
            facts = None if cut.upto is None else order_facts(snapshot.connection, keyed, cut.upto)
            position = position.with_order(str(table), facts)
            if facts is None and self._settings.published_by:
                position = position.with_oids({str(table): oid_of(snapshot.connection, table)})
            position = msgspec.structs.replace(
                position, snapshots={**position.snapshots, snapshot.name: snapshot.bound}
            )
            left -= cut.rows
            if cut.upto is not None or left <= 0:
                break
        return position

    def _held(self) -> CopySnapshot:
        if self._snapshot is None:
            self._snapshot = CopySnapshot(open_session(self._settings, self._errors, self._application), self._tables)
            self._require_whole(self._snapshot)
            self._find_published(self._snapshot.connection)
            self._taken.add(self._snapshot.name)
        return self._snapshot

    def _require_whole(self, snapshot: CopySnapshot) -> None:
        """Raise ``FatalError`` for a standby's snapshot while transactions run: it does not name them, so their changes
        would be taken for copied."""
        oldest, following, _ = snapshot.bound.seen.split(":")
        if snapshot.is_of_standby and self._settings.snapshot_mode == "initial" and oldest != following:
            self.close()
            raise self._errors.standby()

    def _ordered(self, connection: Connection, table: TableName) -> KeyedTable:
        published = self._published.get(table)
        rows = rows_of(connection, table, published.row_filter if published else "")
        return KeyedTable(table, self._order(connection, table), rows)

    def _order(self, connection: Connection, table: TableName) -> list[KeyColumn]:
        """Return the columns that order the copy of a table."""
        return key_of(connection, table)

    def _operation(self, table: str, start: PostgresPosition) -> CopyOperation:
        """Return the operation of records copied from a position on."""
        return "snapshot"

    def split(self, start: PostgresPosition, end: PostgresPosition, n: int) -> list[Split]:
        """Return splits of the tables that a range copies. Raises ``TransientError`` if their snapshot is lost."""
        tables = _copied_between(start, end)
        if not tables:
            return []
        names = {end.copied[table][-1].snapshot for table in tables}
        held = self._snapshot.name if self._snapshot else ""
        if held not in names and names & self._taken:
            raise self._errors.snapshot_gone()
        # a range planned by an earlier run is read again only for comparison with the digest of what was published
        snapshot = self._held()
        ranges = {table: self._range(snapshot, start, end, table) for table in tables}
        # parts of one size, of any table: each has a connection of its own, which takes as long as a thousand rows
        rows = max(1, -(-sum(one.rows for one in ranges.values()) // n))
        splits: list[Split] = []
        begin = msgspec.structs.replace(
            start, snapshots=end.snapshots, everything=end.everything, shapes=end.shapes
        ).in_stream_of(end)
        ordinal = 0
        for table, copied in ranges.items():
            keyed, after, done = copied.table, copied.after, 0
            key = [column.name for column in key_of(snapshot.connection, keyed.name)]
            columns, operation = self._columns(snapshot.connection, keyed.name), self._operation(table, start)
            # a step may be cut in the middle of the table
            begin = begin.with_order(table, order_facts(snapshot.connection, keyed))
            name, width = end.copied[table][-1].snapshot, self._width(snapshot, keyed, after)
            for cut in snapshot.cuts(copied, rows):
                part = TablePart(keyed.name, columns, key, keyed.order, operation, after, cut.upto, keyed.rows)
                detail = CopyDetail(part, snapshot.exported, name)
                count = cut.rows - done
                splits.append(Split(begin.to_json(), ordinal, count, count * width, as_json(detail)))
                begin = begin.with_region(table, Region(cut.upto, name))
                after, done, ordinal = cut.upto, cut.rows, ordinal + count
            begin = begin.with_order(table, end.orders.get(table))
        return splits

    def _range(self, snapshot: CopySnapshot, start: PostgresPosition, end: PostgresPosition, table: str) -> KeyRange:
        keyed = self._ordered(snapshot.connection, TableName.parse(table))
        return snapshot.counted(keyed, start.copied_upto(table), end.copied_upto(table))

    def gives_up(self, start: PostgresPosition, end: PostgresPosition) -> bool:
        """Return whether a range copies rows under a snapshot that this run does not hold."""
        held = self._snapshot.name if self._snapshot else ""
        return any(end.copied[table][-1].snapshot != held for table in _copied_between(start, end))

    def release(self, position: PostgresPosition) -> None:
        """Release the snapshot once all tables are copied and delivered."""
        if self._snapshot is not None and all(position.is_copied(str(table)) for table in self._tables):
            self.close()

    def close(self) -> None:
        """Release the snapshot."""
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None


def order_facts(connection: Connection, keyed: KeyedTable, last: list[str] | None = None) -> list[str]:
    """Return the table's OID, the columns that order its rows, with their types, and the labels of enums in the last
    row, if given, as a position stores them."""
    names = [column.name for column in keyed.order]
    labels = [] if last is None else labels_of(connection, keyed.name, names, last)
    return [oid_of(connection, keyed.name), *(f"{column.name} {column.order}" for column in keyed.order), *labels]


def _is_order(connection: Connection, keyed: KeyedTable, known: list[str], last: list[str]) -> bool:
    """Return whether a table still has the known order, in which ``last`` is the last row."""
    facts, columns = order_facts(connection, keyed, last), [column.name for column in keyed.order]
    if NO_LABEL in {fact.rpartition(" ")[2] for fact in facts[1 + len(columns) :]}:
        return False
    # positions within a step have no labels, and those of earlier versions no types
    return known in (facts, facts[: 1 + len(columns)], [facts[0], *columns])


def _copied_between(start: PostgresPosition, end: PostgresPosition) -> list[str]:
    """Return the tables with rows to copy in a range."""
    return [
        table
        for table, regions in end.copied.items()
        # a region without a snapshot needed no copy
        if regions[-1].snapshot
        and not start.is_copied(table)
        and (table not in start.copied or start.copied_upto(table) != regions[-1].upto)
    ]
