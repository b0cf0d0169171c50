"""Changes of a slot's stream as records, in the order in which their transactions were committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Final, Literal, NamedTuple

import msgspec

from conduit_dagster.connectors.postgres import pgoutput
from conduit_dagster.connectors.postgres.change_marks import TRUNCATE, UNCHANGED_TOAST
from conduit_dagster.connectors.postgres.pgoutput import Relation
from conduit_dagster.connectors.postgres.row_functions import ReadRow, row_reader
from conduit_dagster.connectors.postgres.row_values import Decode, text
from conduit_dagster.connectors.postgres.seen_changes import SeenChanges, Verdict
from conduit_dagster.connectors.postgres.source_errors import START_OVER
from conduit_dagster.connectors.postgres.source_position import StreamPoint, format_lsn
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.record import COLLECTION, CREATED_AT, Document, Record
from conduit_dagster.recovery.errors import FatalError

LSN = "postgres.lsn"
"""Metadata: where the transaction's commit record begins."""
XID = "postgres.xid"
"""Metadata: the transaction's id, which the server uses again after four billion others."""


def collection_of(table: str) -> str:
    """Return a table's collection: its name, with its schema unless that is ``public``."""
    return table.removeprefix("public.")


class Catalog(NamedTuple):
    """What the stream leaves open: the settings tell it, and the database."""

    is_read: Callable[[str], bool]
    """Whether a table (``schema.table``) is one of ours: a publication may have others."""

    decoder: Callable[[int], Decode]
    """Of a type."""
    keys: Callable[[int], Sequence[str]]
    """Key columns, as they are now, of a table (OID) that marks all its columns, or none."""
    describe: Callable[[Relation], None]
    """Takes in what the stream says of a table: its copy is compared with changes by it."""


class StreamRange(NamedTuple):
    """The changes behind one point up to another."""

    start: StreamPoint
    end: StreamPoint


class ReadAs(NamedTuple):
    """How the records of a read are made."""

    labels: Mapping[str, str]
    """Metadata of all of them."""
    with_positions: bool


class TableRows:
    """A table as the stream describes it, with what reads its rows."""

    def __init__(self, relation: Relation, decoder: Callable[[int], Decode]) -> None:
        self.relation = relation
        self.read = row_reader([(name, decoder(oid)) for name, oid in zip(relation.names, relation.types, strict=True)])
        self._only = relation.key_names[0] if len(relation.key_names) == 1 else None

    @lazy_property
    def read_texts(self) -> ReadRow:
        """Reader with all values as text."""
        return row_reader([(name, text) for name in self.relation.names])

    def key(self, row: Document) -> Document | None:
        """Return a row's key, without large values that were not sent, because they did not change."""
        if self._only is not None and self._only in row:
            return {self._only: row[self._only]}
        return self.known_key(row) or None

    def known_key(self, row: Document) -> Document:
        """Return the columns of the key that are there."""
        return {name: row[name] for name in self.relation.key_names if name in row}


class Origin(NamedTuple):
    """What a table's changes in one transaction share."""

    table: TableRows
    metadata: dict[str, str]
    lsn: int
    transaction: str
    """The LSN as it begins a position."""
    is_compared: bool
    """Whether some copies of the table may have seen them, and others not, so that each is looked at."""


Operation = Literal["create", "update", "delete", "truncate"]


class MadeFrom(msgspec.Struct, gc=False):
    """What a record was made of: it can be made once more."""

    operation: Operation
    message: bytes
    origin: Origin
    place: int

    @property
    def lsn(self) -> int:
        """Where the transaction's commit record begins."""
        return self.origin.lsn

    @property
    def position(self) -> str:
        """The record's position: its transaction, and its place in that."""
        return f"{self.origin.transaction}/{self.place}"

    def record(self, with_position: bool = True) -> Record:
        """Make the record."""
        position = self.position if with_position else ""
        table, metadata, *_ = self.origin
        if self.message[pgoutput.MARK] == pgoutput.NEW:
            # most changes tell no row before, and all of the one after
            after, _ = table.read(self.message, pgoutput.ROW)
            if len(after) == len(table.relation.names):
                return Record(position, metadata, after, table.key(after), None, self.operation)
        if self.operation == "truncate":
            return Record(position, {**metadata, TRUNCATE: "true"}, operation="delete")
        return self._of_row(position)

    def _of_row(self, position: str) -> Record:
        table, metadata, *_ = self.origin
        change = pgoutput.read_change(self.message, table.read)
        before = change.old if change.old is None or change.is_row else table.known_key(change.old)
        if self.operation == "delete":
            return Record(position, metadata, None, table.key(before or {}), before, "delete")
        after, left_out = _after(table.relation.names, change.new or {}, before or {})
        if left_out:
            metadata = {**metadata, UNCHANGED_TOAST: ",".join(left_out)}
        before = before if self.operation == "update" else None
        return Record(position, metadata, after, table.key(after), before, self.operation)


_NEVER = 1 << 62


class Changes:
    """Decoder of one range of the stream; its records pile up, and are taken away from there."""

    def __init__(self, catalog: Catalog, seen: SeenChanges, within: StreamRange, read_as: ReadAs) -> None:
        self._catalog = catalog
        self._seen = seen
        self._within = within
        self._labels, self._with_positions = read_as
        self.records: list[Record] = []
        self._made: list[MadeFrom] = []
        self.is_over = False
        """Whether the range's last change was taken, in the midst of a transaction."""
        self._tables: dict[bytes, TableRows | None] = {}
        self._lsn, self._xid, self._index, self._skip, self._stop = 0, 0, 0, 0, _NEVER
        self._shared: dict[str, str] = {}
        self._origins: dict[bytes, Origin | None] = {}
        """Of the transaction, by the tables' OIDs, as messages have them."""

    def take(self) -> tuple[list[Record], list[MadeFrom]]:
        """Return what has piled up, and what each was made of."""
        records, made, self.records, self._made = self.records, self._made, [], []
        return records, made

    def feed(self, messages: Iterable[bytes]) -> None:
        """Take the next messages. Raises ``FatalError`` for a change that no record can tell."""
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
        """Count a change, and return whether it is in the range."""
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
        """Return what the transaction's changes of a table share; None: it is not one of ours, or its copy has them."""
        if oid not in self._origins:
            self._origins[oid] = self._begun(oid)
        return self._origins[oid]

    def _begun(self, oid: bytes) -> Origin | None:
        table = self._tables[oid]
        if table is None:
            return None
        name, is_compared = table.relation.name, self._is_compared(table.relation)
        if is_compared and not self._seen.is_in_parts(name):
            if self._seen.verdict_on_all(name, self._xid) == "drop":
                return None
            is_compared = False
        metadata = {COLLECTION: collection_of(name), **self._shared}
        return Origin(table, metadata, self._lsn, self._shared[LSN], is_compared)

    def _describe(self, message: bytes) -> None:
        relation = pgoutput.read_relation(message, self._catalog.keys)
        oid = message[1:5]
        self._origins.pop(oid, None)
        if not self._catalog.is_read(relation.name):
            self._tables[oid] = None
            return
        self._tables[oid] = TableRows(relation, self._catalog.decoder)
        self._catalog.describe(relation)

    def _compare(self, operation: RowOperation, origin: Origin, message: bytes) -> None:
        verdict = self._verdict(origin.table, message)
        if verdict != "drop":
            self._add(operation if verdict == "keep" else verdict, origin, message)

    def _is_compared(self, relation: Relation) -> bool:
        # parts are told apart by the key; without one (the table is gone) a change may come again, and none is lost
        return self._seen.has(relation.name) and (bool(relation.key) or not self._seen.is_in_parts(relation.name))

    def _verdict(self, table: TableRows, message: bytes) -> Verdict:
        texts, keys = pgoutput.read_change(message, table.read_texts), table.relation.key_names
        new = None if texts.new is None else [texts.new[name] for name in keys]
        # an update that leaves the key as it was tells no old one
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


def _after(names: list[str], new: Document, before: Document) -> tuple[Document, list[str]]:
    """Return the row after a change, and the columns of it that nobody sent: they are left out, for they are not null.

    What the server left out because it did not change is taken from the row before, where that came whole.
    """
    if len(new) == len(names):
        return new, []
    # a copy: the two may be changed apart
    kept = {name: deepcopy(before[name]) for name in names if name not in new and name in before}
    whole = {name: new[name] if name in new else kept[name] for name in names if name in new or name in kept}
    return whole, [name for name in names if name not in whole]
