"""Writer of staged messages, on the task's side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from conduit_dagster.connectors.kafka.staged_messages import MessageGroup, MessageLayout, StagedChunk, packed
from conduit_dagster.record import Record
from conduit_dagster.sdk import NewPart, Part, Refusal, Writer, WriterTask

_CHUNK = 2_000


class MessageWriter(Writer):
    """Writer of a task's messages into one file. The same records give the same bytes, whatever blocks they come in."""

    def __init__(self, task: WriterTask, layout: MessageLayout) -> None:
        self._layout = layout
        self._part = NewPart(task, "messages")
        self._waiting = _EvenChunks()
        self._records = 0

    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Append the messages of the records; refuse those that can't become a message."""
        chunk, refused = self._layout.chunk(records)
        if chunk is not None:
            self._waiting.add(chunk)
            self._records += chunk.records
            self._append(self._waiting.whole())
        return refused

    def _append(self, chunks: Iterator[StagedChunk]) -> None:
        for chunk in chunks:
            self._part.write(packed(chunk))

    def finish(self) -> Part | None:
        """Finish the file and return its part."""
        self._append(self._waiting.rest())
        return self._part.finish(self._records)

    def abort(self) -> None:
        """Abort the file."""
        self._part.abort()


class _EvenChunks:
    """Messages that wait until there are enough of them for a chunk, by property."""

    def __init__(self) -> None:
        self._topics: list[Any] = []
        self._values: list[Any] = []
        self._keys: list[Any] = []
        self._headers: list[Any] = []
        self._times: list[Any] = []
        self._columns = (self._topics, self._values, self._keys, self._headers, self._times)

    def add(self, chunk: StagedChunk) -> None:
        """Add the messages of a block."""
        first = len(self._topics)
        if len(chunk.groups) == 1:
            for column, values in zip(self._columns, _columns_of(chunk.groups[0]), strict=True):
                column += values
            return
        for column in self._columns:
            column += [None] * chunk.records
        for group in chunk.groups:
            places = [first + place for place in group.all_places]
            for column, values in zip(self._columns, _columns_of(group), strict=True):
                for place, value in zip(places, values, strict=True):
                    column[place] = value

    def whole(self) -> Iterator[StagedChunk]:
        """Yield the chunks that are full."""
        end = len(self._topics) // _CHUNK * _CHUNK
        for start in range(0, end, _CHUNK):
            yield self._chunk(slice(start, start + _CHUNK))
        for column in self._columns:
            del column[:end]

    def rest(self) -> Iterator[StagedChunk]:
        """Yield the last one."""
        if self._topics:
            yield self._chunk(slice(None))

    def _chunk(self, some: slice) -> StagedChunk:
        topics, values, keys, headers, times = (column[some] for column in self._columns)
        group = MessageGroup(topics[0], None, values, keys, headers if any(headers) else None, times)
        if times[0] is None:
            group.times = None
        size = sum(len(value) for value in values if value is not None)
        return StagedChunk(len(values), size, _by_topic(group, topics))


def _columns_of(group: MessageGroup) -> tuple[list[Any], ...]:
    count = len(group.values)
    none: list[Any] = [None] * count
    return [group.topic] * count, group.values, group.keys, group.headers or none, group.times or none


def _by_topic(whole: MessageGroup, topics: list[str]) -> list[MessageGroup]:
    if topics.count(topics[0]) == len(topics):
        return [whole]
    found: dict[str, list[int]] = {}
    for place, topic in enumerate(topics):
        found.setdefault(topic, []).append(place)
    groups = [whole.only(places, places) for places in found.values()]
    for group, name in zip(groups, found, strict=True):
        group.topic = name
    return groups
