"""Whether brokers have lost messages before a position, and given their offsets to others (KIP-320).

Only a broker that became leader without having all messages does so (``unclean.leader.election.enable``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from conduit_dagster.connectors.kafka.kafka_client import PASSING, KafkaErrors, make_client
from conduit_dagster.connectors.kafka.kafka_cluster import KnownTopic
from conduit_dagster.connectors.kafka.kafka_position import NO_EPOCH, TopicPosition, is_recreated
from conduit_dagster.connectors.kafka.partition_reader import SAMPLED, consumer_config, some_messages
from conduit_dagster.connectors.kafka.settings import KafkaSourceSettings

_SOME: Final = 100
_TRUNCATED: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE)
Seen = tuple[int, int, int]
"""An offset, the leader's epoch when it was stored, and the leader's epoch now."""


class LogTruncation:
    """Comparison of stored positions with what brokers have, wherever a partition got another leader meanwhile."""

    def __init__(self, settings: KafkaSourceSettings, errors: KafkaErrors) -> None:
        self._settings, self._errors = settings, errors
        self._whole: dict[tuple[str, int], Seen] = {}
        """What was found in order: a quiet topic's position is the same for a long time."""

    def require_none(self, before: Mapping[str, TopicPosition], known: Mapping[str, KnownTopic]) -> None:
        """Raise ``FatalError`` (``kafka.truncated``) where messages before the next offset are not those that were
        read."""
        asked: dict[tuple[str, int], Seen] = {}
        for name, topic in known.items():
            position = before.get(name)
            if position is not None and not is_recreated(position.id, topic.id):
                asked |= {(name, number): seen for number, seen in _led_anew(position, topic)}
        unknown = {place: seen for place, seen in asked.items() if self._whole.get(place) != seen}
        if unknown:
            self._ask(unknown)
            self._whole |= unknown

    def _ask(self, asked: Mapping[tuple[str, int], Seen]) -> None:
        consumer = make_client(Consumer, consumer_config(self._settings, self._errors) | SAMPLED, self._errors)
        try:
            # the client asks for the end of that epoch before it fetches
            consumer.assign([TopicPartition(*place, seen[0], leader_epoch=seen[1]) for place, seen in asked.items()])
            left, heard = dict(asked), time.monotonic()
            while left:
                waiting = len(left)
                for message in some_messages(consumer, _SOME):
                    self._take(message, left, consumer)
                if len(left) < waiting:
                    # the answers for many partitions may take longer in all
                    heard = time.monotonic()
                elif time.monotonic() - heard > self._settings.timeout:
                    topic, partition = next(iter(left))
                    what = f"the leader of {topic}, partition {partition}, does not answer"
                    raise self._errors.verdict(KafkaError(KafkaError._TIMED_OUT), what, topic)
        finally:
            consumer.close()

    def _take(self, message: Message, left: dict[tuple[str, int], Seen], consumer: Consumer) -> None:
        place, error = (message.topic() or "", message.partition() or 0), message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            left.pop(place, None)
        elif error.code() in _TRUNCATED:
            # of one that was found whole before, it is about messages behind the position
            offset = left.pop(place, (0, 0, 0))[0]
            if offset and not _is_removed(consumer, place, offset):
                where = f"{place[0]}, partition {place[1]}"
                raise self._errors.truncated(where, offset, error.str(), place[0])
        elif error.code() not in PASSING:
            raise self._errors.verdict(error, f"{place[0]}, partition {place[1]}", place[0])


def _led_anew(position: TopicPosition, topic: KnownTopic) -> list[tuple[int, Seen]]:
    """Return the partitions that have another leader than when the position was stored, and what it says of them."""
    found: list[tuple[int, Seen]] = []
    columns = zip(position.next, position.epochs, topic.epochs, topic.low, topic.high, strict=False)
    for number, (offset, was, now, low, high) in enumerate(columns):
        # messages that are gone, or not there yet, are told elsewhere
        if NO_EPOCH not in (was, now) and was != now and offset and low <= offset <= high:
            found.append((number, (offset, was, now)))
    return found


def _is_removed(consumer: Consumer, place: tuple[str, int], offset: int) -> bool:
    """Return whether the offset was removed since it was planned: the client has the same error for that."""
    with suppress(KafkaException):
        return consumer.get_watermark_offsets(TopicPartition(*place), 5)[0] > offset
    return False
