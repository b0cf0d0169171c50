"""The ``kafka`` source: messages of topics, partition by partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import re2

from conduit_dagster.config.scalars import comma_separated
from conduit_dagster.connectors.kafka.group_offsets import GroupOffsets
from conduit_dagster.connectors.kafka.kafka_client import AccessRights, KafkaErrors, own_id
from conduit_dagster.connectors.kafka.kafka_cluster import Cluster, KnownTopic
from conduit_dagster.connectors.kafka.kafka_position import (
    NO_ID,
    KafkaPosition,
    PartitionRange,
    TopicPosition,
    cut,
    is_recreated,
    parse_position,
    ranges,
)
from conduit_dagster.connectors.kafka.log_truncation import LogTruncation
from conduit_dagster.connectors.kafka.message_sizes import MessageSizes, shares
from conduit_dagster.connectors.kafka.partition_reader import GONE, START_OVER, PartitionReader
from conduit_dagster.connectors.kafka.settings import KafkaSourceSettings
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.sdk import Block, ConnectorContext, Dataset, Limit, Position, ReadOptions, Source, Split

_BYTES = 100
"""Assumed bytes of a message if its partition was not sampled."""
_LARGE = 4 << 20
"""Bytes of a step that justify several tasks, each with a connection of its own."""


class KafkaSource(Source):
    """Source of messages as records: the value becomes the payload and the key the key, both as raw bytes.

    Reads committed messages only. A step takes a share of each partition and reads it topic by topic, partition by
    partition; within a partition the order is Kafka's. No consumer group is joined: the pipeline stores the positions.
    ``delivery.batch-size`` limits the offsets of a step, ``delivery.batch-bytes`` its bytes, estimated from samples.

    A range can be read again. A message that compaction removes meanwhile was replaced by a later one. A step whose
    staging is lost after it was prepared is compared with the prepared decision: it is delivered unchanged, or the run
    stops (``delivery.rebuild_differs``).
    """

    name = "kafka"
    Settings = KafkaSourceSettings
    settings: KafkaSourceSettings
    sets_metadata = True
    gives_json = True
    lag_unit = "records"

    def __init__(self, settings: KafkaSourceSettings, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        rights = AccessRights(("Read", "Describe"), own_id(settings.group_id, context))
        self._errors = KafkaErrors(settings, rights)
        self._cluster = Cluster(settings, self._errors)
        self._sizes = MessageSizes(settings, self._errors)
        self._truncation = LogTruncation(settings, self._errors)
        self._group = GroupOffsets(settings, context, self._errors, self._cluster)

    @property
    def unit(self) -> dict[str, Any]:
        """The plugin only: topics are identified by their ids, and can be added while others continue."""
        return {"plugin": self.name}

    @property
    def dataset(self) -> Dataset | None:
        """The topic, if the source reads just one."""
        names = self.settings.names
        if len(names) != 1 or self.settings.patterns:
            return None
        return Dataset(f"kafka://{self.settings.place.partition(',')[0]}", names[0])

    def reads_topic(self, servers: str, name: str) -> bool:
        """Return whether the source reads a topic of these bootstrap servers."""
        mine, theirs = comma_separated(self.settings.servers), comma_separated(servers)
        named = name in self.settings.names or any(re2.fullmatch(one, name) for one in self.settings.patterns)
        return named and not set(mine).isdisjoint(theirs)

    def close(self) -> None:
        """Close the driver's connections."""
        self._group.close()
        self._cluster.close()
        self._sizes.close()

    # -- start positions ----------------------------------------------------------------------------------------

    def initial(self) -> Position:
        """Return the start of the first run; topics missing in it are read from their beginning."""
        start = self.settings.start
        if start == "earliest":
            return KafkaPosition().as_json()
        known = self._known()
        ends = {(one.name, number): end for one in known.values() for number, end in enumerate(one.high)}
        begins = ends if start == "latest" else self._cluster.at_time(start, list(ends), ends)
        topics = {name: _begun(one, begins) for name, one in known.items()}
        return KafkaPosition(topics).as_json()

    def check(self) -> None:
        """Connect and check that the topics exist and may be read."""
        self._cluster.require_readable(sorted(self._known()))

    def _known(self) -> dict[str, KnownTopic]:
        """Return the topics of the setting ``topics``. Raises ``FatalError`` if one is missing."""
        names = [*self.settings.names, *self._cluster.matching(self.settings.patterns)]
        known = self._cluster.known(sorted(set(names)))
        for name in self.settings.names:
            if name not in known:
                raise self._errors.no_topic(name)
        return known

    def place(self, position: Position) -> Any:
        """Return topic ids and next offsets."""
        return parse_position(position).place()

    def horizon(self) -> Any:
        """Return the current end of each partition."""
        return {name: list(one.high) for name, one in self._known().items()}

    # -- planning -----------------------------------------------------------------------------------------------

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the end of the next step: a share of each partition's messages, up to its last stable offset."""
        before = parse_position(start)
        known = self._known()
        if self.settings.on_gone != "skip":
            self._require_read(before, known)
        begun = {name: self._begin(before.topics.get(name), one) for name, one in known.items()}
        if self.settings.on_gone != "skip":
            self._truncation.require_none(before.topics, known)
        waiting: dict[tuple[str, int], int] = {}
        for name, one in sorted(known.items()):
            ends = one.high if horizon is None else tuple(horizon.get(name, ()))
            for number, (begin, end) in enumerate(zip(begun[name].next, ends, strict=False)):
                waiting[name, number] = max(0, min(end, one.high[number]) - begin)
        begins = {place: begun[place[0]].next[place[1]] for place in waiting}
        taken = self._sizes.bounded(begins, shares(waiting, limit.records), limit.bytes)
        if not any(taken.values()):
            return start
        topics = dict(before.topics)
        for name, one in begun.items():
            moved = tuple(offset + taken.get((name, number), 0) for number, offset in enumerate(one.next))
            topics[name] = TopicPosition(one.id, moved, one.first, known[name].epochs)
        return KafkaPosition(topics).as_json()

    def _require_read(self, before: KafkaPosition, known: Mapping[str, KnownTopic]) -> None:
        """Raise ``FatalError`` for a deleted topic that a pattern had matched, whether or not it was read to its
        end."""
        missing = sorted(before.topics.keys() - known.keys())
        gone = [name for name in missing if any(re2.fullmatch(one, name) for one in self.settings.patterns)]
        # a list of topics leaves out those that the user may not describe: an error of its own
        there = self._cluster.describe(gone)
        for name in gone:
            if name not in there:
                message = f"the topic {name} was deleted, perhaps with messages that were not read"
                fix = "accept that with on-gone: skip, or let topics leave it out"
                raise self._errors.fatal(message, "kafka.no_topic", fix, name)

    def _begin(self, before: TopicPosition | None, topic: KnownTopic) -> TopicPosition:
        """Return the position at which a topic continues; added partitions are read from their beginning."""
        if before is None:
            return TopicPosition(topic.id, topic.low, topic.low)
        if problem := self._problem(before, topic):
            # lost by the brokers, messages may come back: going on before them would deliver acked ones again
            if self.settings.on_gone != "skip" or not problem.fatal:
                raise problem
            if is_recreated(before.id, topic.id):
                return TopicPosition(topic.id, topic.low, topic.low)
        count = len(before.next)
        pairs = zip(before.next, topic.low, strict=False)
        moved = [max(offset, low) for offset, low in pairs]
        first = [
            kept if to == offset else to for kept, to, offset in zip(before.first, moved, before.next, strict=True)
        ]
        # while brokers are updated one by one, the older ones show none
        known = before.id if topic.id == NO_ID else topic.id
        return TopicPosition(known, (*moved, *topic.low[count:]), (*first, *topic.low[count:]))

    def _problem(self, before: TopicPosition, topic: KnownTopic) -> ConduitError | None:
        """Return the error for a topic whose next message is missing: it was removed, or the topic was recreated.

        Transient if the brokers have lost it.
        """
        if is_recreated(before.id, topic.id):
            message = f"the topic {topic.name} was recreated: its messages are not the ones that were read"
            return self._errors.fatal(message, "kafka.topic_changed", START_OVER, topic.name)
        if len(topic.low) < len(before.next):
            # partitions are never removed
            message = f"the brokers show {len(topic.low)} of the {len(before.next)} partitions of {topic.name}"
            return self._errors.outage(message, "kafka.behind", "wait for the broker that shows all of them")
        for number, (offset, low, high) in enumerate(zip(before.next, topic.low, topic.high, strict=False)):
            where = f"{topic.name}, partition {number}"
            if offset < low:
                message = f"{where}: messages {offset} to {low - 1} were removed before they were read"
                return self._errors.fatal(message, "kafka.range_gone", GONE.format(topic=topic.name), topic.name)
            if offset > high:
                return self._errors.behind(where, high, offset)
        return None

    # -- ranges -------------------------------------------------------------------------------------------------

    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Return about ``n`` splits, on the assumption that there are no gaps between offsets, which only reading
        tells; a small range, or one that was seen to have gaps, is one split."""
        parts = list(ranges(parse_position(start), parse_position(end)))
        if not parts:
            return []
        dense, size = self.settings.dense_offsets, sum(map(self._size, parts))
        assumed = dense is None and n > 1 and size >= _LARGE and not any(map(self._sizes.has_gap, parts))
        if not (dense or assumed):
            return [_split(parts, 0, None, size)]
        splits, ordinal = list[Split](), 0
        share = max(1, -(-sum(part.end - part.begin for part in parts) // max(1, n)))
        for part in parts:
            for begin in range(part.begin, part.end, share):
                piece = part._replace(begin=begin, end=min(begin + share, part.end))
                split = _split([piece], ordinal, piece.end - piece.begin, self._size(piece))
                splits.append(msgspec.structs.replace(split, assumed=assumed))
                ordinal += piece.end - piece.begin
        return splits

    def _size(self, part: PartitionRange) -> int:
        return int((part.end - part.begin) * self._sizes.of((part.topic, part.partition), _BYTES))

    def within(self, start: Position, end: Position, boundary: Any) -> Position:
        """Return the position after a message of the range; everything after it is unread."""
        before, after = parse_position(start), parse_position(end)
        first = next(ranges(before, after), None)
        if first is not None and (first.topic, first.partition, first.begin) == tuple(boundary):
            return start
        return cut(before, after, boundary).as_json()

    def verify(self, start: Position, end: Position) -> None:
        """Raise ``FatalError`` if messages of the range are gone, or their topic was recreated.

        Oldest messages may be gone with ``on-gone: skip``, and of a partition that is not in ``start``: how far back it
        was read once does not make ``end`` invalid. A task that reads them misses them itself.
        """
        before = parse_position(start).topics
        known = self._known_of(start, end)
        for part, problem in self._missing(start, end, known):
            is_in_start = part.topic in before and part.partition < len(before[part.topic].next)
            may_be_gone = self.settings.on_gone == "skip" or not is_in_start
            if not (may_be_gone and problem.code == "kafka.range_gone"):
                raise problem
        if self.settings.on_gone != "skip":
            self._truncation.require_none(before, known)

    def _known_of(self, start: Position, end: Position) -> dict[str, KnownTopic]:
        """Return the topics of a range."""
        parts = ranges(parse_position(start), parse_position(end))
        return self._cluster.known(sorted({part.topic for part in parts}))

    def _missing(
        self, start: Position, end: Position, known: Mapping[str, KnownTopic]
    ) -> Iterator[tuple[PartitionRange, ConduitError]]:
        """Yield the partitions of a range whose messages are not there, each with its error."""
        after = parse_position(end)
        for part in ranges(parse_position(start), after):
            topic = known.get(part.topic)
            if topic is None:
                yield part, self._errors.no_topic(part.topic)
            elif problem := self._problem(_alone(after.topics[part.topic], part, topic), topic):
                yield part, problem

    def gives_up(self, start: Position, end: Position) -> bool:
        """Return whether the range is gone and its loss is allowed, by ``on-gone: skip``."""
        if self.settings.on_gone != "skip":
            return False
        _, problem = next(self._missing(start, end, self._known_of(start, end)), (None, None))
        if problem is not None and not problem.fatal:
            raise problem
        return problem is not None

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block]:
        """Yield the messages of a split."""
        yield from PartitionReader(self.settings, self._errors, self.context.labels, split).blocks(options)

    def lag(self, position: Position) -> int | None:
        """Return the number of unread offsets."""
        before = parse_position(position).topics
        total = 0
        for name, one in self._known().items():
            known = before.get(name)
            begun = known.next if known is not None and not is_recreated(known.id, one.id) else ()
            begins = (*begun, *one.low[len(begun) :])
            total += sum(
                max(0, end - max(low, begin)) for begin, low, end in zip(begins, one.low, one.high, strict=False)
            )
        return total

    def counts(self, position: Position) -> Mapping[str, int]:
        """Return the number of topics and partitions being read."""
        topics = parse_position(position).topics
        return {"topics": len(topics), "partitions": sum(len(one.next) for one in topics.values())}

    def ack(self, upto: Position, generation: int) -> None:
        """Commit the offsets to the group, with ``commit-offsets``."""
        if self.settings.commit_offsets:
            self._group.commit(parse_position(upto))


def _begun(topic: KnownTopic, begins: Mapping[Any, int]) -> TopicPosition:
    offsets = tuple(begins[topic.name, number] for number in range(len(topic.low)))
    return TopicPosition(topic.id, offsets, offsets, topic.epochs)


def _split(parts: list[PartitionRange], ordinal: int, records: int | None, size: int) -> Split:
    first = parts[0]
    start = [first.topic, first.partition, first.begin]
    return Split(start, ordinal, records, size, {"parts": [list(part) for part in parts]})


def _alone(topic: TopicPosition, part: PartitionRange, known: KnownTopic) -> TopicPosition:
    """Return a position at the beginning of a range in its partition, and at a valid offset in those before it."""
    offsets = (*known.low[: part.partition], part.begin)
    return TopicPosition(topic.id, offsets, offsets)
