"""Positions of the ``kafka`` source: for each topic its id, and the next offset of each partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from conduit_dagster.msgspec_warmup import learn


class TopicPosition(msgspec.Struct, frozen=True):
    """How far a topic is read. Partitions have the numbers from 0, so a list holds them."""

    id: str
    """The topic's id (KIP-516): a topic made anew under the same name has another."""
    next: tuple[int, ...] = ()
    """The offset that comes next, by partition."""
    first: tuple[int, ...] = ()
    """The offset with which reading began, by partition: an observation, which identifies nothing."""


class KafkaPosition(msgspec.Struct, frozen=True):
    """How far all topics are read; also those that ``topics`` does not name any more."""

    topics: dict[str, TopicPosition] = {}

    def as_json(self) -> Any:
        """Return the form that the state store keeps."""
        return msgspec.json.decode(msgspec.json.encode(self))

    def place(self) -> Any:
        """Return what goes into delivery hashes: ids and offsets."""
        return {name: [one.id, *one.next] for name, one in sorted(self.topics.items())}


def parse_position(position: Any) -> KafkaPosition:
    """Return the position that :meth:`KafkaPosition.as_json` gave."""
    return msgspec.convert(position, KafkaPosition)


class PartitionRange(NamedTuple):
    """The offsets ``[begin, end)`` of a partition."""

    topic: str
    partition: int
    begin: int
    end: int


def ranges(start: KafkaPosition, end: KafkaPosition) -> Iterator[PartitionRange]:
    """Yield what lies between two positions, in the order in which it is read: by topic, then by partition."""
    for topic, last in sorted(end.topics.items()):
        before = start.topics.get(topic)
        for partition, (first, stop) in enumerate(zip(last.first, last.next, strict=True)):
            begin = first
            if before is not None and before.id == last.id and partition < len(before.next):
                # where messages were skipped because they are gone, reading began anew further on
                begin = max(first, before.next[partition])
            if stop > begin:
                yield PartitionRange(topic, partition, begin, stop)


def cut(start: KafkaPosition, end: KafkaPosition, boundary: Sequence[Any]) -> KafkaPosition:
    """Return the position within a range at ``(topic, partition, next offset)``: what comes after it is not read."""
    place = (boundary[0], boundary[1])
    topics = dict(start.topics)
    for topic, last in sorted(end.topics.items()):
        if topic < place[0]:
            topics[topic] = last
        if topic == place[0]:
            topics[topic] = _cut_topic(start.topics.get(topic), last, place[1], boundary[2])
    return KafkaPosition(topics)


def _cut_topic(before: TopicPosition | None, last: TopicPosition, partition: int, offset: int) -> TopicPosition:
    read = TopicPosition(last.id, (*last.next[:partition], offset), last.first[: partition + 1])
    if before is None or before.id != last.id:
        return read
    rest = slice(partition + 1, None)
    return TopicPosition(last.id, (*read.next, *before.next[rest]), (*read.first, *before.first[rest]))


learn(KafkaPosition)
