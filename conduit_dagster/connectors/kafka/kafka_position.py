"""Positions of the ``kafka`` source: for each topic its id and the next offset of each partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from conduit_dagster.msgspec_warmup import learn

NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""What stands for the id of a topic whose brokers are older than Kafka 2.8; an update of theirs gives it one."""


NO_EPOCH: Final = -1
"""What stands for the epoch of a partition's leader that is not known."""


class TopicPosition(msgspec.Struct, frozen=True):
    """Position in a topic, with one entry per partition, in partition order from 0."""

    id: str
    """Topic id (KIP-516): a topic recreated under the same name has another. ``NO_ID`` if it is not known."""
    next: tuple[int, ...] = ()
    """The next offset, by partition."""
    first: tuple[int, ...] = ()
    """The offset at which reading began, by partition: informational, not part of the position's identity."""
    epochs: tuple[int, ...] = ()
    """The epoch of the partition's leader that had the messages before ``next``: informational as well. Shorter, or
    empty, in positions of older versions."""


def is_recreated(before: str, now: str) -> bool:
    """Return whether two ids of a topic's name show that it was recreated; one that is not known shows nothing."""
    return before != now and NO_ID not in (before, now)


class KafkaPosition(msgspec.Struct, frozen=True):
    """Position in all topics, including those no longer listed in ``topics``."""

    topics: dict[str, TopicPosition] = {}

    def as_json(self) -> Any:
        """Return the position as JSON, for the state store."""
        return msgspec.json.decode(msgspec.json.encode(self))

    def place(self) -> Any:
        """Return topic ids and next offsets, the part that enters delivery hashes."""
        return {name: [one.id, *one.next] for name, one in sorted(self.topics.items())}


def parse_position(position: Any) -> KafkaPosition:
    """Parse a position from :meth:`KafkaPosition.as_json`."""
    return msgspec.convert(position, KafkaPosition)


class PartitionRange(NamedTuple):
    """The offsets ``[begin, end)`` of a partition."""

    topic: str
    partition: int
    begin: int
    end: int


def ranges(start: KafkaPosition, end: KafkaPosition) -> Iterator[PartitionRange]:
    """Yield the ranges between two positions, in reading order: by topic, then by partition."""
    for topic, last in sorted(end.topics.items()):
        before = start.topics.get(topic)
        for partition, (first, stop) in enumerate(zip(last.first, last.next, strict=True)):
            begin = first
            if before is not None and not is_recreated(before.id, last.id) and partition < len(before.next):
                # after messages that are gone were skipped, reading restarted at a later offset
                begin = max(first, before.next[partition])
            if stop > begin:
                yield PartitionRange(topic, partition, begin, stop)


def cut(start: KafkaPosition, end: KafkaPosition, boundary: Sequence[Any]) -> KafkaPosition:
    """Return the position within a range at ``(topic, partition, next offset)``; everything after it is unread."""
    place = (boundary[0], boundary[1])
    topics = dict(start.topics)
    for topic, last in sorted(end.topics.items()):
        if topic < place[0]:
            topics[topic] = last
        if topic == place[0]:
            topics[topic] = _cut_topic(start.topics.get(topic), last, place[1], boundary[2])
    return KafkaPosition(topics)


def _cut_topic(before: TopicPosition | None, last: TopicPosition, partition: int, offset: int) -> TopicPosition:
    rest = slice(partition + 1, None)
    read = TopicPosition(
        last.id, (*last.next[:partition], offset), last.first[: partition + 1], last.epochs[: partition + 1]
    )
    if before is None or is_recreated(before.id, last.id):
        return read
    # without those before them, epochs would stand for other partitions
    epochs = (*read.epochs, *before.epochs[rest]) if len(read.epochs) == partition + 1 else read.epochs
    return TopicPosition(last.id, (*read.next, *before.next[rest]), (*read.first, *before.first[rest]), epochs)


learn(KafkaPosition)
