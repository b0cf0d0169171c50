"""Changes of a slot's stream as records, in the order in which their transactions were committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
    keys: Callable[[str], Sequence[str]]
    """Key columns of a table that marks all its columns, or none."""


class StreamRange(NamedTuple):
    """The changes behind one point up to another."""

    start: StreamPoint
    end: StreamPoint


_NEVER = 1 << 62


class Changes:
    """Decoder of one range of the stream; its records pile up in ``records``, and are taken away from there."""

    def __init__(self, catalog: Catalog, seen: SeenChanges, within: StreamRange, with_positions: bool) -> None:
        self._catalog = catalog
        self._seen = seen
        self._within = within
        self._with_positions = with_positions
        self.records: list[Record] = []
        self.points: list[tuple[int, int]] = []
        """For each record the point right after it."""
        self.is_over = False
        """Whether the range's last change was taken, in the midst of a transaction."""
        self._relations: dict[int, Relation | None] = {}
        self._lsn, self._xid, self._index, self._skip, self._stop = 0, 0, 0, 0, _NEVER
        self._shared: dict[str, str] = {}
        self._metadata: dict[int, dict[str, str]] = {}

    def take(self) -> tuple[list[Record], list[tuple[int, int]]]:
        """Return what has piled up, with the points."""
        records, points, self.records, self.points = self.records, self.points, [], []
        return records, points

    def feed(self, message: bytes) -> None:
        """Take the next message. Raises ``FatalError`` for a change that no record can tell."""
        kind = message[0]
        if kind in _CHANGES:
            relation = self._relations[int.from_bytes(message[1:5], "big")]
            if self._counts() and relation is not None:
                if kind == pgoutput.INSERT and not self._seen:
                    # most changes are inserts: this is what each of them costs
                    values, _ = pgoutput.read_tuple(message, pgoutput.INSERTED, relation.decoders)
                    self._add(relation, "create", dict(zip(relation.names, values, strict=True)), None)
                else:
                    self._change(kind, relation, message)
        elif kind == pgoutput.BEGIN:
            self._begin(message)
        elif kind == pgoutput.RELATION:
            self._describe(message)
        elif kind == pgoutput.TRUNCATE:
            for relation in map(self._relations.__getitem__, pgoutput.read_truncated(message)):
                if self._counts() and relation is not None:
                    self._truncate(relation)

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
        self._shared = {CREATED_AT: str(begin.committed_ns), LSN: format_lsn(begin.lsn), XID: str(begin.xid)}
        self._metadata = {}

    def _describe(self, message: bytes) -> None:
        relation = pgoutput.read_relation(message, self._catalog.keys)
        if not self._catalog.is_read(relation.name):
            self._relations[relation.oid] = None
            return
        relation.decoders = [self._catalog.decoder(oid) for oid in relation.types]
        self._relations[relation.oid] = relation

    def _change(self, kind: int, relation: Relation, message: bytes) -> None:
        verdict: Verdict = "keep"
        if self._seen and self._seen.has(relation.name):
            verdict = self._verdict(relation, message)
            if verdict == "drop":
                return
        change = pgoutput.read_change(message, relation.decoders)
        if verdict == "create" or (verdict == "keep" and kind == pgoutput.INSERT):
            self._create(relation, change)
        elif verdict == "delete" or kind == pgoutput.DELETE:
            self._delete(relation, change)
        else:
            self._update(relation, change)

    def _verdict(self, relation: Relation, message: bytes) -> Verdict:
        texts = pgoutput.read_texts(message, len(relation.names))
        new = None if texts.new is None else _key_texts(relation, texts.new)
        # an update that leaves the key as it was tells no old one
        old = new if texts.old is None else _key_texts(relation, texts.old)
        return self._seen.verdict(relation.name, self._xid, None if message[0] == pgoutput.INSERT else old, new)

    def _add(self, relation: Relation, operation: str, after: Document | None, before: Document | None) -> Record:
        metadata = self._metadata.get(relation.oid)
        if metadata is None:
            metadata = self._metadata[relation.oid] = {COLLECTION: collection_of(relation.name), **self._shared}
        key = _key(relation.key_names, after if after is not None else before or {})
        position = f"{format_lsn(self._lsn)}/{self._index}" if self._with_positions else ""
        record = Record(position, metadata, after, key, before, operation)
        self.records.append(record)
        self.points.append((self._lsn, self._index))
        return record

    def _create(self, relation: Relation, change: RowChange) -> None:
        after, left_out = _after(relation, change, None)
        self._note(self._add(relation, "create", after, None), left_out)

    def _update(self, relation: Relation, change: RowChange) -> None:
        before = None if change.old is None else _before(relation, change)
        after, left_out = _after(relation, change, before)
        self._note(self._add(relation, "update", after, before), left_out)

    @staticmethod
    def _note(record: Record, left_out: list[str]) -> None:
        if left_out:
            record.metadata = {**record.metadata, UNCHANGED_TOAST: ",".join(left_out)}

    def _delete(self, relation: Relation, change: RowChange) -> None:
        self._add(relation, "delete", None, None if change.old is None else _before(relation, change))

    def _truncate(self, relation: Relation) -> None:
        if self._seen.has(relation.name):
            verdict = self._seen.verdict_on_all(relation.name, self._xid)
            if verdict is None:
                message = f"{relation.name} was truncated between two parts of its copy"
                raise FatalError(message, code="postgres.truncated_copy", place=format_lsn(self._lsn), fix=START_OVER)
            if verdict == "drop":
                return
        record = self._add(relation, "delete", None, None)
        record.metadata = {**record.metadata, TRUNCATE: "true"}


_CHANGES = frozenset({pgoutput.INSERT, pgoutput.UPDATE, pgoutput.DELETE})


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
    whole = {n: known[n] if value is UNCHANGED else value for n, value in after.items() if n not in left_out}
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
