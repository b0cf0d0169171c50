"""The share of each partition in a step: by records, and by bytes, which samples of messages bound before it is read.

The samples show gaps between offsets, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from conduit_dagster.connectors.kafka.kafka_client import KafkaErrors, make_client
from conduit_dagster.connectors.kafka.kafka_position import PartitionRange
from conduit_dagster.connectors.kafka.partition_reader import SAMPLED, consumer_config, some_messages
from conduit_dagster.connectors.kafka.settings import KafkaSourceSettings

Place = tuple[str, int]
"""A topic and a partition."""
_LARGEST: Final = 1_048_588
"""Default ``message.max.bytes`` of brokers; assumed for messages that could not be sampled."""
_MOST: Final = 4
"""Maximum number of partitions sampled per step: those with the most messages in it."""
_SAMPLE: Final = 200
_FRESH: Final = 1.0
"""Seconds for which a sample is valid: taking one costs as much as reading some thousand messages."""
_PATIENCE: Final = 1.0
"""Seconds to wait for a sample; twice as long after each that came too late, as from a busy broker."""
_LONGEST: Final = 5.0
"""Seconds to wait for one at most."""


class MessageSizes:
    """Average message size by partition, sampled at the beginning and the prospective end of a step; also gaps seen.

    Messages in between are not sampled: with mixed sizes, a step may exceed its limit of bytes.
    """

    def __init__(self, settings: KafkaSourceSettings, errors: KafkaErrors) -> None:
        self._settings, self._errors = settings, errors
        self._consumer: Consumer | None = None
        self._topics = frozenset[str]()
        self._known: dict[Place, float] = {}
        self._gaps = set[Place]()
        self._taken_at = 0.0
        self._patience = _PATIENCE

    def bounded(self, begins: Mapping[Place, int], taken: Mapping[Place, int], limit: int) -> dict[Place, int]:
        """Reduce ``taken`` to about ``limit`` bytes, but at least one message per partition."""
        wanted = {place: count for place, count in taken.items() if count}
        if sum(wanted.values()) * max([_LARGEST, *self._known.values()]) > limit:
            self._refresh(begins, wanted)
            return {**taken, **within_bytes(wanted, {place: self.of(place) for place in wanted}, limit)}
        return dict(taken)

    def of(self, place: Place, unknown: float = _LARGEST) -> float:
        """Return the average size in a partition; if it was not sampled, the largest average of its topic, or of
        all."""
        if place in self._known:
            return self._known[place]
        of_topic = [size for (topic, _), size in self._known.items() if topic == place[0]]
        return max(of_topic or self._known.values(), default=unknown)

    def has_gap(self, part: PartitionRange) -> bool:
        """Return whether a sample of the partition had a gap between offsets."""
        return (part.topic, part.partition) in self._gaps

    def _refresh(self, begins: Mapping[Place, int], wanted: Mapping[Place, int]) -> None:
        chosen = sorted(wanted, key=lambda place: -wanted[place])[:_MOST]
        if time.monotonic() - self._taken_at < _FRESH and all(place in self._known for place in chosen):
            return
        first = self._sample({place: begins[place] for place in chosen})
        last = self._sample({place: begins[place] + wanted[place] - 1 for place in chosen})
        self._known = {place: max(first[place], last[place]) for place in chosen}
        self._taken_at = time.monotonic()

    def _sample(self, offsets: Mapping[Place, int]) -> dict[Place, float]:
        """Return the average size of some messages from these offsets on: 0 if there are no more."""
        found: dict[Place, float] = {}
        begun = time.monotonic()
        deadline = begun + self._patience
        try:
            consumer = self._opened(frozenset(topic for topic, _ in offsets))
            consumer.assign([TopicPartition(*place, offset) for place, offset in offsets.items()])
            while len(found) < len(offsets) and time.monotonic() < deadline:
                messages = some_messages(consumer, _SAMPLE)
                self._gaps |= _with_gaps(messages, {place: at for place, at in offsets.items() if place not in found})
                found = _averages(messages) | found
            consumer.unassign()
            if len(found) < len(offsets):
                # as long as no sample comes in time, a step has a few messages only
                self._patience = max(_PATIENCE, min(2 * self._patience, _LONGEST))
            elif time.monotonic() - begun <= _PATIENCE:
                self._patience = _PATIENCE
        except KafkaException:
            self.close()  # ignored here: reading will fail with the same error
        return {place: found.get(place, float(_LARGEST)) for place in offsets}

    def _opened(self, topics: frozenset[str]) -> Consumer:
        # new consumer, because an existing one discovers a new topic only once a second
        if self._consumer is None or not topics <= self._topics:
            self.close()
            config = consumer_config(self._settings, self._errors) | SAMPLED
            self._consumer, self._topics = make_client(Consumer, config, self._errors), topics
        return self._consumer

    def close(self) -> None:
        """Close the consumer; the next sample creates another."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


def _with_gaps(messages: Sequence[Message], asked: Mapping[Place, int]) -> set[Place]:
    """Return the partitions where a message, or the end, was found behind an offset that was ``asked`` for."""
    gaps, expected = set[Place](), dict[Any, int](asked)
    for message in messages:
        place, error, offset = (message.topic(), message.partition()), message.error(), message.offset() or 0
        if place not in expected or (error is not None and error.code() != KafkaError._PARTITION_EOF):
            continue
        if offset > expected[place]:
            gaps.add(cast(Place, place))
        expected[place] = offset if error is not None else offset + 1
    return gaps


def _averages(messages: Sequence[Message]) -> dict[Place, float]:
    sizes: dict[Any, list[int]] = {}
    for message in messages:
        error, place = message.error(), (message.topic(), message.partition())
        if error is None:
            sizes.setdefault(place, []).append(len(message.value() or b"") + len(message.key() or b""))
        elif error.code() == KafkaError._PARTITION_EOF:
            sizes.setdefault(place, [])
    return {place: sum(known) / len(known) if known else 0.0 for place, known in sizes.items()}


def shares(waiting: Mapping[Place, int], limit: int) -> dict[Place, int]:
    """Return a fair share of the limit for each partition, so that no partition delays another.

    Deterministic; the sum is ``limit``, or everything that waits.
    """
    taken: dict[Place, int] = {}
    left, open_ = limit, len(waiting)
    for key, there in sorted(waiting.items(), key=lambda item: item[1]):
        taken[key] = min(there, -(-left // open_))
        left -= taken[key]
        open_ -= 1
    return {key: taken[key] for key in waiting}


def within_bytes(taken: Mapping[Place, int], sizes: Mapping[Place, float], limit: int) -> dict[Place, int]:
    """Return the number of messages per partition that fit into ``limit`` bytes, given average ``sizes``.

    Bytes are shared like messages. At least one message per partition is taken, so that it always progresses.
    """
    given = shares({place: math.ceil(count * sizes[place]) for place, count in taken.items()}, limit)
    return {
        place: count if count * sizes[place] <= given[place] else max(1, int(given[place] / sizes[place]))
        for place, count in taken.items()
    }
