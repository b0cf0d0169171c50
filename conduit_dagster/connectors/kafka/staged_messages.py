"""Staged messages: chunks in a format that the publisher passes to the producer without touching each message.

Tasks write them; the driver reads them, also one by one for dead letters.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec

from conduit_dagster import storage
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Delivery, NewPart, Part, Refusal, Writer, WriterTask

_HEAD = struct.Struct(">II")
"""Chunk header: bytes and records of the chunk, so that readers can skip it."""


class MessageGroup(msgspec.Struct, array_like=True):
    """The messages of a chunk for one topic, in order."""

    topic: str
    places: list[int] | None
    """Places of the messages in the chunk; None: the whole chunk, in order."""
    values: list[bytes | None]
    keys: list[bytes | None]
    headers: list[list[tuple[str, bytes]] | None] | None = None
    """Headers per message; None: no message has any."""
    times: list[int] | None = None
    """Timestamps in milliseconds, 0 for the broker's time; None: the broker's time for all."""

    @property
    def all_places(self) -> Sequence[int]:
        """Places of the messages, in order."""
        return range(len(self.values)) if self.places is None else self.places

    @property
    def is_plain(self) -> bool:
        """Whether there are neither headers nor timestamps: then the producer takes all messages in one call."""
        return self.headers is None and self.times is None

    def only(self, chosen: Sequence[int], places: list[int] | None) -> MessageGroup:
        """Return a selection of the messages, with new places."""

        def some(column: list[Any] | None) -> Any:
            return None if column is None else [column[i] for i in chosen]

        return MessageGroup(
            self.topic, places, some(self.values), some(self.keys), some(self.headers), some(self.times)
        )


class StagedChunk(msgspec.Struct, array_like=True):
    """The messages of consecutive records."""

    records: int
    bytes: int
    """Bytes of the values, by which the publisher bounds the producer's queue."""
    groups: list[MessageGroup]


class Layout(Protocol):
    """Protocol of converters from records to chunks."""

    def chunk(self, records: list[Record]) -> tuple[StagedChunk | None, list[Refusal]]:
        """Return the messages of valid records, and the refusals of the others."""
        ...


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StagedChunk).decode


class MessageWriter(Writer):
    """Writer of a task's chunks into one file."""

    def __init__(self, task: WriterTask, layout: Layout) -> None:
        self._layout = layout
        self._part = NewPart(task, "messages")
        self._records = 0

    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Append the records as a chunk; refuse those that can't become a message."""
        chunk, refused = self._layout.chunk(records)
        if chunk is not None:
            data = _encode(chunk)
            self._part.write(_HEAD.pack(len(data), chunk.records) + data)
            self._records += chunk.records
        return refused

    def finish(self) -> Part | None:
        """Finish the file and return its part."""
        return self._part.finish(self._records)

    def abort(self) -> None:
        """Abort the file."""
        self._part.abort()


def staged_chunks(delivery: Delivery) -> Iterator[tuple[int, StagedChunk]]:
    """Yield the chunks of a delivery, each with the place of its first record; for a child, only its own messages.

    Chunks of a child have ``places`` in all groups, counted from the delivery's first record.
    """
    if delivery.take is None:
        yield from _chunks(delivery, 0, None)
        return
    stop = delivery.skip + delivery.take
    left_out = frozenset(delivery.without)
    wanted = [place for place in range(delivery.skip, stop) if place not in left_out]
    numbers = {place: number for number, place in enumerate(wanted)}
    for first, chunk in _chunks(delivery, delivery.skip, stop):
        groups = [found for group in chunk.groups if (found := _own(group, first, numbers)).values]
        if groups:
            yield 0, StagedChunk(sum(len(group.values) for group in groups), chunk.bytes, groups)


def _own(group: MessageGroup, first: int, numbers: dict[int, int]) -> MessageGroup:
    mine = [(i, numbers[first + place]) for i, place in enumerate(group.all_places) if first + place in numbers]
    return group.only([i for i, _ in mine], [number for _, number in mine])


def _chunks(delivery: Delivery, start: int, stop: int | None) -> Iterator[tuple[int, StagedChunk]]:
    first = 0
    for part in delivery.parts:
        if first + part.records <= start:
            first += part.records
            continue
        if stop is not None and first >= stop:
            return
        url = storage.join(delivery.staging, part.name)
        with storage.open_read(url) as file:
            while head := file.read(_HEAD.size):
                size, records = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
                if first + records <= start or (stop is not None and first >= stop):
                    file.seek(size, 1)
                else:
                    yield first, _decoded(file.read(size), url)
                first += records


def _decoded(data: bytes, url: str) -> StagedChunk:
    try:
        return _decode(data)
    except msgspec.DecodeError:
        fix = "was it changed by hand? remove it, and it is staged again"
        raise FatalError(f"{url} is not as it was staged", code="kafka.staging", place=url, fix=fix) from None


def staged_message(delivery: Delivery, place: int) -> tuple[bytes | None, bytes | None] | None:
    """Return value and key of the message at a place of a whole delivery; None if it has no such message."""
    for first, chunk in _chunks(delivery, place, place + 1):
        for group in chunk.groups:
            if place - first in group.all_places:
                index = group.all_places.index(place - first)
                return group.values[index], group.keys[index]
    return None


def places_of(delivery: Delivery, topic: str) -> list[int]:
    """Return the places of the delivery's records for a topic."""
    found: list[int] = []
    for first, chunk in staged_chunks(delivery):
        for group in chunk.groups:
            if group.topic == topic:
                found += [first + place for place in group.all_places]
    return sorted(found)
