"""Changes of a slot's stream as records, in the order in which their transactions were committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, Literal, NamedTuple

from conduit_dagster.connectors.postgres import pgoutput
from conduit_dagster.connectors.postgres.change_marks import TRUNCATE, UNCHANGED_TOAST
from conduit_dagster.connectors.postgres.pgoutput import UNCHANGED, Relation, RowChange
from conduit_dagster.connectors.postgres.row_values import Decode
from conduit_dagster.connectors.postgres.seen_changes import SeenChanges, Verdict
from conduit_dagster.connectors.postgres.source_errors import START_OVER
from conduit_dagster.connectors.postgres.source_position import StreamPoint, format_lsn
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


class MadeFrom(NamedTuple):
    """What a record was made of: it can be made once more."""

    operation: Literal["create", "update", "delete", "truncate"]
    relation: Relation
    message: bytes
    metadata: dict[str, str]
    """Shared by a table's records of a transaction."""
    lsn: int
    place: int

    @property
    def position(self) -> str:
        """The record's position: its transaction, and its place in that."""
        return f"{format_lsn(self.lsn)}/{self.place}"

    def record(self, with_position: bool = True) -> Record:
        """Make the record."""
        position = self.position if with_position else ""
        if self.operation == "truncate":
            return Record(position, {**self.metadata, TRUNCATE: "true"}, operation="delete")
        return self._of_row(position)

    def _of_row(self, position: str) -> Record:
        relation, message = self.relation, self.message
        if message[0] == pgoutput.INSERT:
            values, _ = pgoutput.read_tuple(message, pgoutput.INSERTED, relation.decoders)
            after = dict(zip(relation.names, values, strict=True))
            return Record(position, self.metadata, after, _key(relation.key_names, after))
        change = pgoutput.read_change(message, relation.decoders)
        before = None if change.old is None else _before(relation, change)
        if self.operation == "delete":
            return Record(position, self.metadata, None, _key(relation.key_names, before or {}), before, "delete")
        after, left_out = _after(relation, change, before)
        metadata = {**self.metadata, UNCHANGED_TOAST: ",".join(left_out)} if left_out else self.metadata
        key = _key(relation.key_names, after)
        return Record(position, metadata, after, key, before if self.operation == "update" else None, self.operation)


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
        self._relations: dict[int, Relation | None] = {}
        self._compared: set[int] = set()
        """Tables of which changes may have been seen, so that each is looked at."""
        self._lsn, self._xid, self._index, self._skip, self._stop = 0, 0, 0, 0, _NEVER
        self._shared: dict[str, str] = {}
        self._metadata: dict[int, dict[str, str]] = {}

    def take(self) -> tuple[list[Record], list[MadeFrom]]:
        """Return what has piled up, and what each was made of."""
        records, made, self.records, self._made = self.records, self._made, [], []
        return records, made

    def feed(self, message: bytes) -> None:
        """Take the next message. Raises ``FatalError`` for a change that no record can tell."""
        kind = message[0]
        if kind in _CHANGES:
            relation = self._relations[int.from_bytes(message[1:5], "big")]
            if self._counts() and relation is not None:
                self._change(_CHANGES[kind], relation, message)
        elif kind == pgoutput.BEGIN:
            self._begin(message)
        elif kind == pgoutput.RELATION:
            self._describe(message)
        elif kind == pgoutput.TRUNCATE:
            for relation in map(self._relations.__getitem__, pgoutput.read_truncated(message)):
                if self._counts() and relation is not None:
                    self._truncate(relation, message)

    def _counts(self) -> bool:
        """Count a change, and return whether it is in the range."""
        if self._index >= self._stop:
            self.is_over = True
            return False
        self._index += 1
        return self._index > self._skip

    def _begin(self, message: bytes) -> None:
        begin = pgoutput.read_begin(message)
        self._lsn, self._xid, self._index = begin.lsn, begin.xid, 0
        start, end = self._within
        self._skip = start.changes if begin.lsn == start.lsn else 0
        self._stop = end.changes if begin.lsn == end.lsn else _NEVER
        about = {CREATED_AT: str(begin.committed_ns), LSN: format_lsn(begin.lsn), XID: str(begin.xid)}
        self._shared = {**self._labels, **about}
        self._metadata = {}

    def _describe(self, message: bytes) -> None:
        relation = pgoutput.read_relation(message, self._catalog.keys)
        if not self._catalog.is_read(relation.name):
            self._relations[relation.oid] = None
            return
        relation.decoders = [self._catalog.decoder(oid) for oid in relation.types]
        self._relations[relation.oid] = relation
        self._compared.discard(relation.oid)
        if self._is_compared(relation):
            self._compared.add(relation.oid)
        self._catalog.describe(relation)

    def _change(self, operation: RowOperation, relation: Relation, message: bytes) -> None:
        if relation.oid in self._compared:
            verdict = self._verdict(relation, message)
            if verdict == "drop":
                return
            operation = operation if verdict == "keep" else verdict
        self._add(operation, relation, message)

    def _is_compared(self, relation: Relation) -> bool:
        # parts are told apart by the key; without one (the table is gone) a change may come again, and none is lost
        return self._seen.has(relation.name) and (bool(relation.key) or not self._seen.is_in_parts(relation.name))

    def _verdict(self, relation: Relation, message: bytes) -> Verdict:
        texts = pgoutput.read_texts(message, len(relation.names))
        new = None if texts.new is None else _key_texts(relation, texts.new)
        # an update that leaves the key as it was tells no old one
        old = new if texts.old is None else _key_texts(relation, texts.old)
        return self._seen.verdict(relation.name, self._xid, None if message[0] == pgoutput.INSERT else old, new)

    def _truncate(self, relation: Relation, message: bytes) -> None:
        if self._seen.has(relation.name):
            verdict = self._seen.verdict_on_all(relation.name, self._xid)
            if verdict is None:
                text = f"{relation.name} was truncated between two parts of its copy"
                raise FatalError(text, code="postgres.truncated_copy", place=format_lsn(self._lsn), fix=START_OVER)
            if verdict == "drop":
                return
        self._add("truncate", relation, message)

    def _add(
        self, operation: Literal["create", "update", "delete", "truncate"], relation: Relation, message: bytes
    ) -> None:
        metadata = self._metadata.get(relation.oid)
        if metadata is None:
            metadata = self._metadata[relation.oid] = {COLLECTION: collection_of(relation.name), **self._shared}
        made = MadeFrom(operation, relation, message, metadata, self._lsn, self._index)
        self._made.append(made)
        self.records.append(made.record(self._with_positions))


RowOperation = Literal["create", "update", "delete"]
_CHANGES: Final[dict[int, RowOperation]] = {
    pgoutput.INSERT: "create",
    pgoutput.UPDATE: "update",
    pgoutput.DELETE: "delete",
}


def _after(relation: Relation, change: RowChange, before: Document | None) -> tuple[Document, list[str]]:
    """Return the row after a change, and the columns of it that nobody sent: they are left out, for they are not null.

    What the server left out because it did not change is taken from the row before, where that came whole.
    """
    assert change.new is not None
    after = dict(zip(relation.names, change.new, strict=True))
    if UNCHANGED not in change.new:
        return after, []
    known = before or {}
    left_out = [name for name, value in after.items() if value is UNCHANGED and name not in known]
    # a copy: the two may be changed apart
    whole = {n: deepcopy(known[n]) if value is UNCHANGED else value for n, value in after.items() if n not in left_out}
    return whole, left_out


def _key(names: list[str], known: Document) -> Document | None:
    try:
        return {name: known[name] for name in names} or None
    except KeyError:
        # a large value of the key that was not sent, because it did not change
        return {name: known[name] for name in names if name in known} or None


def _before(relation: Relation, change: RowChange) -> Document:
    """Return the row before a change: all of it, or its key, the only columns that the server sent."""
    assert change.old is not None
    if change.is_row:
        return dict(zip(relation.names, change.old, strict=True))
    return {relation.names[place]: change.old[place] for place in relation.key}


def _key_texts(relation: Relation, values: list[Any]) -> list[str]:
    return [values[place] for place in relation.key]
