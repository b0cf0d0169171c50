"""Decoding of a slot's change stream into records, in commit order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Final, Literal, NamedTuple

import msgspec

from conduit_dagster.change_marks import TRUNCATE, UNCHANGED_TOAST, unchanged_text
from conduit_dagster.connectors.postgres import pgoutput
from conduit_dagster.connectors.postgres.pgoutput import Relation
from conduit_dagster.connectors.postgres.row_values import Decode, ReadRow, row_reader, text
from conduit_dagster.connectors.postgres.settings import TableName, table_text
from conduit_dagster.connectors.postgres.source_errors import START_OVER
from conduit_dagster.connectors.postgres.source_position import SeenChanges, StreamPoint, Verdict, format_lsn
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.record import COLLECTION, CREATED_AT, Document, Record
from conduit_dagster.recovery.errors import FatalError

LSN = "postgres.lsn"
"""Metadata key: LSN of the transaction's commit record."""
XID = "postgres.xid"
"""Metadata key: transaction id (32 bits). The server reuses ids after about four billion transactions."""


def collection_of(table: str) -> str:
    """Return the collection of a table (``schema.table``): its name, prefixed with the schema unless that is
    ``public``; in quotes where a destination would take it apart."""
    return table_text(TableName.parse(table), "public")


class Catalog(NamedTuple):
    """Facts that decoding needs and the stream lacks: from the settings and from the database catalog."""

    is_read: Callable[[str], bool]
    """Whether the source reads a table (``schema.table``): a publication may contain others."""

    decoder: Callable[[int], Decode]
    """Decoder of a type (OID)."""
    keys: Callable[[int, pgoutput.Columns], Sequence[str]]
    """Key of a table (OID) whose relation message marks all columns as key, or none, among the columns sent."""
    is_sent_in_part: Callable[[int], bool]
    """Whether old rows of a table (OID) with a full replica identity may lack columns, which then look null."""
    describe: Callable[[Relation], None]
    """Called with each relation message; comparing changes with a copied row needs it."""


class StreamRange(NamedTuple):
    """The changes after ``start`` up to ``end``."""

    start: StreamPoint
    end: StreamPoint


class ReadAs(NamedTuple):
    """Options for the records of one read."""

    labels: Mapping[str, str]
    """Metadata of every record."""
    with_positions: bool


class TableRows:
    """A relation of the stream, with the reader of its rows."""

    def __init__(self, relation: Relation, decoder: Callable[[int], Decode], has_old_rows: bool) -> None:
        """``has_old_rows``: old rows are complete where the server says so."""
        self.relation, self.has_old_rows = relation, has_old_rows
        self.read = row_reader([(name, decoder(oid)) for name, oid in zip(relation.names, relation.types, strict=True)])
        self._only = relation.key_names[0] if len(relation.key_names) == 1 else None

    @lazy_property
    def read_texts(self) -> ReadRow:
        """Reader that returns all values as text."""
        return row_reader([(name, text) for name in self.relation.names])

    def key(self, row: Document) -> Document | None:
        """Return the key of a row, without unchanged large values (TOAST), which the server does not send."""
        if self._only is not None and self._only in row:
            return {self._only: row[self._only]}
        return self.known_key(row) or None

    def known_key(self, row: Document) -> Document:
        """Return the key columns that the row contains."""
        return {name: row[name] for name in self.relation.key_names if name in row}


class Origin(NamedTuple):
    """Facts shared by all changes of one table in one transaction."""

    table: TableRows
    metadata: dict[str, str]
    lsn: int
    transaction: str
    """LSN as text, the first part of a position."""
    is_compared: bool
    """Whether each change must be compared with the table's copies: some have seen the transaction and others not."""


Operation = Literal["create", "update", "delete", "truncate"]


class MadeFrom(msgspec.Struct, gc=False):
    """Source of a record, from which the record can be rebuilt."""

    operation: Operation
    message: bytes
    origin: Origin
    place: int

    @property
    def lsn(self) -> int:
        """LSN of the transaction's commit record."""
        return self.origin.lsn

    @property
    def position(self) -> str:
        """The record's position: the LSN of its transaction and its place within it."""
        return f"{self.origin.transaction}/{self.place}"

    def record(self, with_position: bool = True) -> Record:
        """Build the record."""
        position = self.position if with_position else ""
        table, metadata, *_ = self.origin
        if self.message[pgoutput.MARK] == pgoutput.NEW:
            # fast path: most changes have no old row and a complete new one
            after, _ = table.read(self.message, pgoutput.ROW)
            if len(after) == len(table.relation.names):
                return Record(position, metadata, after, table.key(after), None, self.operation)
        if self.operation == "truncate":
            return Record(position, {**metadata, TRUNCATE: "true"}, operation="delete")
        return self._of_row(position)

    def _of_row(self, position: str) -> Record:
        table, metadata, *_ = self.origin
        change = pgoutput.read_change(self.message, table.read)
        is_whole = change.old is None or (change.is_row and table.has_old_rows)
        before = change.old if is_whole else table.known_key(change.old or {})
        if before is not None and not change.is_row and None in before.values():
            raise _unidentified(table.relation, self.lsn)
        if self.operation == "delete":
            return Record(position, metadata, None, table.key(before or {}), before, "delete")
        after, left_out = _after(table.relation.names, change.new or {}, before or {})
        if left_out and self.operation == "create":
            # of an update that moved it: as a new row, it would have null in their place
            raise _moved(table.relation.name, left_out, self.lsn)
        if left_out:
            metadata = {**metadata, UNCHANGED_TOAST: unchanged_text(left_out)}
        before = before if self.operation == "update" else None
        return Record(position, metadata, after, table.key(after), before, self.operation)


_NEVER = 1 << 62


class Changes:
    """Decoder of one range of the stream. Records accumulate until ``take`` is called."""

    def __init__(self, catalog: Catalog, seen: SeenChanges, within: StreamRange, read_as: ReadAs) -> None:
        self._catalog = catalog
        self._seen = seen
        self._within = within
        self._labels, self._with_positions = read_as
        self.records: list[Record] = []
        self._made: list[MadeFrom] = []
        self.is_over = False
        """Whether the range's last change was decoded, in the middle of a transaction."""
        self._tables: dict[bytes, TableRows | None] = {}
        self._lsn, self._xid, self._index, self._skip, self._stop = 0, 0, 0, 0, _NEVER
        self._shared: dict[str, str] = {}
        self._origins: dict[bytes, Origin | None] = {}
        """Origins of the current transaction by table OID, as the four bytes of messages."""

    def take(self) -> tuple[list[Record], list[MadeFrom]]:
        """Return and clear the accumulated records, each with its source."""
        records, made, self.records, self._made = self.records, self._made, [], []
        return records, made

    def feed(self, messages: Iterable[bytes]) -> None:
        """Decode the next messages. Raises ``FatalError`` for a change that can't be expressed as a record."""
        for message in messages:
            operation = _CHANGES.get(message[0])
            if operation is None:
                self._other(message)
            elif self._counts() and (origin := self._origin(message[1:5])):
                if origin.is_compared:
                    self._compare(operation, origin, message)
                else:
                    self._add(operation, origin, message)

    def _other(self, message: bytes) -> None:
        kind = message[0]
        if kind == pgoutput.BEGIN:
            self._begin(message)
        elif kind == pgoutput.RELATION:
            self._describe(message)
        elif kind == pgoutput.TRUNCATE:
            for oid in pgoutput.read_truncated(message):
                if self._counts() and (origin := self._origin(oid)):
                    self._truncate(origin, message)

    def _counts(self) -> bool:
        """Count a change and return whether it lies in the range."""
        index = self._index
        if index >= self._stop:
            self.is_over = True
            return False
        self._index = index + 1
        return index >= self._skip

    def _begin(self, message: bytes) -> None:
        begin = pgoutput.read_begin(message)
        self._lsn, self._xid, self._index = begin.lsn, begin.xid, 0
        start, end = self._within
        self._skip = start.changes if begin.lsn == start.lsn else 0
        self._stop = end.changes if begin.lsn == end.lsn else _NEVER
        about = {CREATED_AT: str(begin.committed_ns), LSN: format_lsn(begin.lsn), XID: str(begin.xid)}
        self._shared = {**self._labels, **about}
        self._origins = {}

    def _origin(self, oid: bytes) -> Origin | None:
        """Return the origin of the transaction's changes of a table; None if the source does not read the table, or its
        copy contains all of them."""
        if oid not in self._origins:
            self._origins[oid] = self._begun(oid)
        return self._origins[oid]

    def _begun(self, oid: bytes) -> Origin | None:
        table = self._tables[oid]
        if table is None:
            return None
        name, is_compared = table.relation.name, False
        if self._seen.has(name):
            verdict = self._seen.verdict_on_all(name, self._xid)
            if verdict == "drop":
                return None
            # compared only where the copies differ: later on the key may be another one, or of another type. Without a
            # key (the table was dropped) a change may be repeated, but none is lost
            is_compared = verdict is None and bool(table.relation.key)
        metadata = {COLLECTION: collection_of(name), **self._shared}
        return Origin(table, metadata, self._lsn, self._shared[LSN], is_compared)

    def _describe(self, message: bytes) -> None:
        relation = pgoutput.read_relation(message, self._catalog.keys)
        oid = message[1:5]
        self._origins.pop(oid, None)
        if not self._catalog.is_read(relation.name):
            self._tables[oid] = None
            return
        has_old_rows = relation.is_full and not self._catalog.is_sent_in_part(relation.oid)
        self._tables[oid] = TableRows(relation, self._catalog.decoder, has_old_rows)
        self._catalog.describe(relation)

    def _compare(self, operation: RowOperation, origin: Origin, message: bytes) -> None:
        verdict = self._verdict(origin.table, message)
        if verdict != "drop":
            self._add(operation if verdict == "keep" else verdict, origin, message)

    def _verdict(self, table: TableRows, message: bytes) -> Verdict:
        texts, keys = pgoutput.read_change(message, table.read_texts), table.relation.key_names
        # the server sends a large key (TOAST) that did not change in the old row only
        row = None if texts.new is None else {**(texts.old or {}), **texts.new}
        new = None if row is None else [row[name] for name in keys]
        # an update that does not change the key has no old row
        old = new if texts.old is None else [texts.old[name] for name in keys]
        return self._seen.verdict(table.relation.name, self._xid, None if message[0] == pgoutput.INSERT else old, new)

    def _truncate(self, origin: Origin, message: bytes) -> None:
        name = origin.table.relation.name
        if self._seen.has(name):
            verdict = self._seen.verdict_on_all(name, self._xid)
            if verdict is None:
                text = f"{name} was truncated between two parts of its copy"
                raise FatalError(text, code="postgres.truncated_copy", place=format_lsn(self._lsn), fix=START_OVER)
            if verdict == "drop":
                return
        self._add("truncate", origin, message)

    def _add(self, operation: Operation, origin: Origin, message: bytes) -> None:
        made = MadeFrom(operation, message, origin, self._index)
        self._made.append(made)
        self.records.append(made.record(self._with_positions))


RowOperation = Literal["create", "update", "delete"]
_CHANGES: Final[dict[int, RowOperation]] = {
    pgoutput.INSERT: "create",
    pgoutput.UPDATE: "update",
    pgoutput.DELETE: "delete",
}


def _unidentified(relation: Relation, lsn: int) -> FatalError:
    text = (
        f"a change of {relation.name} does not say which row it is about: the replica identity of a partition that was "
        f"added lacks columns of the key ({', '.join(relation.key_names)})"
    )
    fix = f"ALTER TABLE … REPLICA IDENTITY FULL, or USING INDEX … with the key, for that partition; then {START_OVER}"
    return FatalError(text, code="postgres.no_key", place=format_lsn(lsn), fix=fix)


def _moved(table: str, left_out: Sequence[str], lsn: int) -> FatalError:
    text = (
        f"an update moved a row of {table} between two parts of its copy, or into the publication's filter, and the "
        f"server did not send its large values: {', '.join(left_out)}"
    )
    fix = f"{START_OVER}; ALTER TABLE {table} REPLICA IDENTITY FULL has them sent"
    return FatalError(text, code="postgres.moved_row", place=format_lsn(lsn), fix=fix)


def _after(names: list[str], new: Document, before: Document) -> tuple[Document, list[str]]:
    """Return the row after a change, and its columns that the server did not send: they are left out, because they are
    not null.

    Values that the server omitted as unchanged are taken from the old row, if that was sent in full.
    """
    if len(new) == len(names):
        return new, []
    # copied, because before and after may be modified independently
    kept = {name: deepcopy(before[name]) for name in names if name not in new and name in before}
    whole = {name: new[name] if name in new else kept[name] for name in names if name in new or name in kept}
    return whole, [name for name in names if name not in whole]
