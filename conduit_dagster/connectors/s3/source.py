"""The ``s3`` source: the objects of a bucket, and their changes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import msgspec

from conduit_dagster.connectors.s3.bucket import Bucket, FoundObject, ReadObject
from conduit_dagster.connectors.s3.object_position import ObjectLists, ObjectPosition, ObjectState, parse_position
from conduit_dagster.connectors.s3.settings import S3SourceSettings
from conduit_dagster.connectors.step_planning import MOST_FILES
from conduit_dagster.record import CREATED_AT, Record
from conduit_dagster.sdk import (
    Block,
    ConnectorContext,
    Dataset,
    KeptValues,
    Limit,
    Position,
    ReadOptions,
    ResumeState,
    Source,
    Split,
)
from conduit_dagster.sdk.context import dataset_at

_AT_ONCE: Final = 8
_MOST_BYTES: Final = 16 << 20
"""Bytes of objects that are requested before they are needed; one object may be larger."""
_REQUEST: Final = 1 << 16
"""Bytes that take about as long as a request."""
_REST: Final = 10
"""The least time between two listings, as a multiple of what a listing takes: it is parsed, object by object."""
_CONTENT_TYPE: Final = "s3.header.contentType"


class S3Source(Source):
    """An object is one record: its content raw, its key as the record's key, its content type and metadata.

    All objects that are there come first, as snapshots in the order of their keys; then each that is new or was
    changed or deleted since the listing before. Of several changes of an object between two listings only the last one
    is seen. An object that changes between its listing and its reading is read as it is then, and comes again.
    """

    name = "s3"
    Settings = S3SourceSettings
    settings: S3SourceSettings
    sets_metadata = True
    gives_json = True
    lag_unit = "records"
    identity_settings = ("aws.endpoint", "aws.bucket", "prefix")

    def __init__(self, settings: S3SourceSettings, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._bucket = Bucket(settings)
        self._lists = ObjectLists(context)
        self._listed: list[FoundObject] = []
        """The newest listing; it is used until all of it is read."""
        self._is_read = True
        self._due = 0.0
        """When the bucket may be listed again, on the monotonic clock."""

    @property
    def dataset(self) -> Dataset | None:
        """The bucket, or the part of it with the prefix."""
        return dataset_at(f"{self._bucket.url}/{self.settings.prefix}")

    def reads_objects(self, place: str, beginning: str) -> bool:
        """Return whether it reads objects of this store and bucket whose keys begin so."""
        return place == self.settings.place and beginning.startswith(self.settings.prefix)

    def attach_kept(self, kept: KeptValues) -> None:
        """Store objects that were read there instead of in the position."""
        self._lists.attach(kept)

    def resume(self, state: ResumeState) -> None:
        """Forget the listing of an earlier run: another process may have read on meanwhile."""
        self._listed, self._is_read, self._due = [], True, 0.0

    def check(self) -> None:
        """Raise if the bucket can't be listed."""
        self._bucket.check()

    def initial(self) -> Position:
        """Return the position before the first object."""
        return ObjectPosition().as_json()

    def place(self, position: Position) -> Any:
        """Return which objects were read, digested once objects have left the position."""
        where = parse_position(position)
        return position if where.read is None else {"seen": where.seen, "sum": where.read.place(where.files)}

    def horizon(self) -> Any:
        """Return when the newest object was written."""
        self._list()
        return {"modified": max((one.modified for one in self._listed), default=0)}

    def _list(self) -> None:
        began = time.monotonic()
        self._listed = list(self._bucket.objects(self.settings.prefix))
        ended = time.monotonic()
        self._due = ended + max(self.settings.polling_period, _REST * (ended - began))
        self._is_read = False

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the position after the next changes, up to the limit."""
        position = parse_position(start)
        if self._is_read:
            if horizon is None and time.monotonic() < self._due:
                return start
            self._list()
        changes = self._changes(position, self._listed, None if horizon is None else horizon["modified"])
        taken = _within(changes, limit)
        self._is_read = len(taken) == len(changes)
        if not taken:
            return start
        end = self._lists.moved(self._lists.left(position), taken)
        return msgspec.structs.replace(end, copied=position.copied or self._is_read).as_json()

    def _changes(
        self, position: ObjectPosition, listed: Sequence[FoundObject], until: int | None = None
    ) -> list[ObjectState]:
        """Return what a listing has that the position has not, in order; deletions at the end.

        ``until``: without what was written later.
        """
        known, seen = self._lists.known(position), position.seen
        gone = {key: one.number for key, one in known.items()}
        found = list[ObjectState]()
        in_order = sorted(listed, key=lambda one: (one.modified, one.key)) if position.copied else listed
        for one in in_order:
            gone.pop(one.key, None)
            old = known.get(one.key)
            if (old is not None and old.mark == (one.etag, one.modified)) or (
                until is not None and one.modified > until
            ):
                continue
            number, seen = (seen, seen + 1) if old is None else (old.number, seen)
            operation = "update" if old is not None else "create" if position.copied else "snapshot"
            found.append(ObjectState(one.key, one.etag, one.modified, number, one.size, operation))
        return found + [ObjectState(key, "", 0, number, 0, "delete") for key, number in sorted(gone.items())]

    def within(self, start: Position, end: Position, boundary: Any) -> Position:
        """Return the position at a boundary, which is a number of the range's records."""
        before, after = parse_position(start), parse_position(end)
        changes = self._lists.changes(before, after)
        if boundary == len(changes):
            return end
        return self._lists.moved(before.like(after), changes[:boundary]).as_json() if boundary else start

    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Return the range cut into splits of about as many bytes."""
        changes = self._lists.changes(parse_position(start), parse_position(end))
        ordinal, splits = 0, list[Split]()
        for piece in _pieces(changes, n):
            objects = [msgspec.to_builtins(one) for one in piece]
            size = sum(one.size for one in piece)
            splits.append(Split(ordinal, ordinal, len(piece), size, {"objects": objects}))
            ordinal += len(piece)
        return splits

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block]:
        """Yield the objects, a few at a time."""
        waiting, size, first = list[tuple[ObjectState, ReadObject | None]](), 0, split.ordinal
        for state, found in self._read(msgspec.convert(split.detail["objects"], list[ObjectState])):
            waiting.append((state, found))
            size += 0 if found is None else len(found.data)
            if size >= options.block_bytes or len(waiting) >= options.block_records:
                yield self._block(waiting, first)
                first += len(waiting)
                waiting, size = [], 0
        if waiting:
            yield self._block(waiting, first)

    def _read(self, states: Sequence[ObjectState]) -> Iterator[tuple[ObjectState, ReadObject | None]]:
        """Yield the objects in order, several requests ahead."""
        ahead: deque[tuple[ObjectState, Future[ReadObject | None]]] = deque()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for state in states:
                ahead.append((state, pool.submit(self._object, state)))
                while len(ahead) >= _AT_ONCE or (ahead and sum(one.size for one, _ in ahead) > _MOST_BYTES):
                    first, read = ahead.popleft()
                    yield first, read.result()
            yield from ((state, read.result()) for state, read in ahead)

    def _object(self, state: ObjectState) -> ReadObject | None:
        return self._bucket.read(state.key) if state.etag else None

    def _block(self, read: Sequence[tuple[ObjectState, ReadObject | None]], first: int) -> Block:
        def again(places: Sequence[int]) -> list[Record]:
            return [self._record(*read[place]) for place in places]

        return Block(again(range(len(read))), lambda i: first + i + 1, again=again)

    def _record(self, state: ObjectState, found: ReadObject | None) -> Record:
        position, key, labels = (
            f"{state.number}:{state.etag}:{state.modified}:{state.key}",
            state.key.encode(),
            self.context.labels,
        )
        if found is None:
            return Record(position, labels, None, key, None, "delete")
        metadata = {
            **found.metadata,
            **labels,
            CREATED_AT: str(state.modified * 1_000_000),
            _CONTENT_TYPE: found.content_type,
        }
        return Record(position, metadata, found.data, key, None, state.operation)

    def counts(self, position: Position) -> Mapping[str, int]:
        """Return the number of objects that were read and still exist."""
        return {"objects_read": len(self._lists.known(parse_position(position)))}

    def lag(self, position: Position) -> int | None:
        """Return the number of changes that were not read, by a listing of its own."""
        return len(self._changes(parse_position(position), list(self._bucket.objects(self.settings.prefix))))


def _within(changes: Sequence[ObjectState], limit: Limit) -> Sequence[ObjectState]:
    """Return the first changes within the limit, at least one if there are any."""
    size = 0
    for place, one in enumerate(changes[: min(limit.records, MOST_FILES)]):
        size += one.size
        if size > limit.bytes and place:
            return changes[:place]
    return changes[: min(limit.records, MOST_FILES)]


def _pieces(changes: Sequence[ObjectState], n: int) -> Iterator[Sequence[ObjectState]]:
    """Yield the changes in at most ``n`` pieces of about as many bytes; a request counts as some more."""
    share = sum(one.size + _REQUEST for one in changes) / n
    begin, size = 0, 0.0
    for end, one in enumerate(changes, 1):
        size += one.size + _REQUEST
        if size >= share or end == len(changes):
            yield changes[begin:end]
            begin, size = end, 0.0
