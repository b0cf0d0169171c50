"""Source, task side: reads ranges of offsets, committed messages only."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby, takewhile
from operator import lt
from typing import Any, Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition

from conduit_dagster.connectors.kafka.kafka_client import NO_TOPIC, PASSING, KafkaErrors, client_config, make_client
from conduit_dagster.connectors.kafka.kafka_position import PartitionRange
from conduit_dagster.connectors.kafka.message_headers import header_metadata, headers_of, without_unreadable
from conduit_dagster.connectors.kafka.settings import KafkaSourceSettings
from conduit_dagster.record import COLLECTION, CREATED_AT, SOURCE_CONNECTOR_ID, Nack, Record
from conduit_dagster.sdk import MISCOUNTED, Block, Keys, ReadOptions, Split

_BYTES = 4
"""Size of a block, as a multiple of the requested one: messages take less room than records."""
_WAIT = 20
"""Milliseconds that a broker waits for more messages at the end of a partition."""
_END = 5.0
"""Seconds to wait for the end of a partition, once its messages do not come."""
_LOGIN = (KafkaError._AUTHENTICATION, KafkaError._SSL)


def consumer_config(settings: KafkaSourceSettings, errors: KafkaErrors) -> dict[str, Any]:
    """Return the configuration of a consumer with assigned partitions, without group membership."""
    return client_config(settings, errors) | {
        "group.id": settings.group_id or "conduit",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        # a missing offset is an error and never resets to another offset
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "check.crcs": True,
        # the end of a range may lie after the last message, which only an empty response reveals
        "fetch.wait.max.ms": _WAIT,
        "queued.min.messages": 50_000,
        # pause before the next fetch once that many messages are queued; the default is a second
        "fetch.queue.backoff.ms": 5,
        "queued.max.messages.kbytes": 65_536,
        # a message of any size that a broker takes; by default one of 100 MB could never be read
        "receive.message.max.bytes": (1 << 31) - 1,
    }


class PartitionReader:
    """Reader of one split: its ranges of offsets, one after another."""

    def __init__(
        self, settings: KafkaSourceSettings, errors: KafkaErrors, labels: dict[str, str], split: Split
    ) -> None:
        self._settings, self._errors, self._labels, self._split = settings, errors, labels, split
        self._is_counted = split.records is not None

    def blocks(self, options: ReadOptions) -> Iterator[Block]:
        """Yield the messages of the ranges. Messages read before an error are yielded before it is raised."""
        parts = [PartitionRange(*part) for part in self._split.detail["parts"]]
        # one consumer per topic, because an existing one discovers a new topic only once a second
        for _, several in groupby(parts, lambda part: part.topic):
            mine = list(several)
            # the next partition's messages come once the broker has answered for the end of the one before
            wait = {"fetch.wait.max.ms": max(1, _WAIT // len(mine))}
            consumer = make_client(Consumer, consumer_config(self._settings, self._errors) | wait, self._errors)
            try:
                for part in mine:
                    maker = RecordMaker(self._labels, part, self._settings.offset_metadata, options.keys)
                    for messages in self._messages(consumer, part, options):
                        yield maker.block(messages)
            finally:
                consumer.close()

    def _messages(self, consumer: Consumer, part: PartitionRange, options: ReadOptions) -> Iterator[list[Message]]:
        """Yield the range in batches."""
        consumer.assign([TopicPartition(part.topic, part.partition, part.begin)])
        batches, heard, expected = _Batches(options), time.monotonic(), part.begin
        try:
            while True:
                messages, ended, error = in_range(some_messages(consumer, options.block_records), part.end)
                if messages:
                    self._check_offsets(messages, part, expected)
                    expected = _offset(messages[-1]) + 1
                    yield from batches.full(messages)
                    # not before: how long the records are processed says nothing about the brokers
                    heard = time.monotonic()
                if ended or expected >= part.end:
                    self._require_dense(part, expected)
                    break
                if error is not None:
                    self._look_at(error, part, consumer, expected)
                # a timeout, which never counts as the end of the range
                if time.monotonic() - heard > self._settings.timeout:
                    self._require_end(consumer, part, expected)
                    what = f"no answer for {self._settings.timeout:g} s at {part.topic}/{part.partition}/{expected}"
                    raise self._errors.verdict(KafkaError(KafkaError._TIMED_OUT), what, part.topic)
        except Exception:
            yield from batches.rest()  # messages before the failure count
            raise
        yield from batches.rest()

    def _check_offsets(self, messages: list[Message], part: PartitionRange, expected: int) -> None:
        """Invariant: each offset of the range is given once, in order, and none beyond its end.

        Where a client goes back, the task fails instead.
        """
        offsets = list(map(_offset, messages))
        if offsets[0] < expected or not all(map(lt, offsets, offsets[1:])):
            message = f"{part.topic}, partition {part.partition}: the client went back behind offset {expected}"
            raise self._errors.outage(
                message, "kafka.server", "run again: it continues after the messages that were read"
            )
        assert offsets[-1] < part.end
        if self._is_counted and offsets[-1] - expected + 1 > len(offsets):
            dense = takewhile(lambda pair: pair[0] == pair[1], enumerate(offsets, expected))
            raise self._not_dense(part, expected + sum(1 for _ in dense))

    def _require_dense(self, part: PartitionRange, expected: int) -> None:
        if self._is_counted and expected != part.end:
            raise self._not_dense(part, expected)

    def _not_dense(self, part: PartitionRange, expected: int) -> Exception:
        message = f"offsets of {part.topic}, partition {part.partition}, have a gap after {expected - 1}"
        if self._split.assumed:
            return self._errors.fatal(message, MISCOUNTED, "set dense-offsets: false", part.topic)
        fix = "remove dense-offsets: the topic is compacted, or written in transactions; it goes on after what was read"
        return self._errors.fatal(message, "kafka.gap", fix, part.topic)

    def _look_at(self, error: KafkaError, part: PartitionRange, consumer: Consumer, expected: int) -> None:
        """Raise for an error of the partition. Connection errors are ignored, since the client reconnects by itself."""
        where = f"{part.topic}, partition {part.partition}"
        if error.code() == KafkaError._AUTO_OFFSET_RESET or error.code() == KafkaError.OFFSET_OUT_OF_RANGE:
            self._require_end(consumer, part, expected)
            message = f"{where}: messages from {part.begin} to {part.end} are not all there any more"
            if self._settings.on_gone == "skip":
                fix = "on-gone is skip: the next attempt goes on behind them, unless their step was prepared"
                raise self._errors.outage(message, "kafka.range_gone", fix)
            raise self._errors.fatal(message, "kafka.range_gone", GONE.format(topic=part.topic), part.topic)
        if error.code() not in PASSING or error.code() in (*NO_TOPIC, *_LOGIN):
            raise self._errors.verdict(error, where, part.topic)

    def _require_end(self, consumer: Consumer, part: PartitionRange, expected: int) -> None:
        """Raise ``TransientError`` if the partition ends before the range, as far as the brokers answer."""
        place = TopicPartition(part.topic, part.partition)
        with suppress(KafkaException):
            _, high = consumer.get_watermark_offsets(place, min(_END, self._settings.timeout))
            if high < part.end:
                raise self._errors.behind(f"{part.topic}, partition {part.partition}", high, expected)


SAMPLED: Final[dict[str, Any]] = {
    "queued.min.messages": 1,
    "fetch.message.max.bytes": 65_536,
    "isolation.level": "read_uncommitted",
}
"""Configuration for small fetches of messages that are discarded: aborted ones are as good a sample as others."""
START_OVER = (
    "start over: conduit-dagster positions rewind PIPELINE CONNECTOR --to-start; or accept the loss: set on-gone: skip"
)
GONE = START_OVER + "; and let the topic {topic} keep messages for longer (retention.ms)"


def some_messages(consumer: Consumer, count: int) -> list[Message]:
    """Return the available messages, up to ``count``, waiting for the first only: ``consume`` with a timeout waits for
    all."""
    found = consumer.consume(count, 0)
    if not found and (found := consumer.consume(1, 1.0)) and count > 1:
        found += consumer.consume(count - 1, 0)
    return found


def in_range(got: list[Message], end: int) -> tuple[list[Message], bool, KafkaError | None]:
    """Return the messages before ``end``, whether it was reached, and the first error.

    It is reached by a message after the range, or by the partition's EOF event, which follows control messages and
    offsets removed by compaction. One call may return both, and in between messages that belong to the next step.
    """
    messages, ended, failed = list[Message](), False, None
    for one in got:
        error = one.error()
        if error is None:
            messages.append(one)
        elif error.code() == KafkaError._PARTITION_EOF:
            ended = ended or _offset(one) >= end
        else:
            failed = failed or error
    if messages and _offset(messages[-1]) >= end:
        return [one for one in messages if _offset(one) < end], True, failed
    return messages, ended, failed


def _offset(message: Message) -> int:
    return message.offset() or 0


class _Batches:
    """Cutter of a range into batches that depend on the messages alone, not on when they arrive.

    A part that is staged again must have the same bytes, and blocks enter them.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._records, self._bytes = options.block_records, _BYTES * options.block_bytes
        self._batch, self._size = list[Message](), 0

    def full(self, messages: list[Message]) -> Iterator[list[Message]]:
        """Add messages; yield each batch that is full."""
        for message in messages:
            self._batch.append(message)
            self._size += len(message)
            if len(self._batch) >= self._records or self._size >= self._bytes:
                yield from self.rest()

    def rest(self) -> Iterator[list[Message]]:
        """Yield the batch that is not full, unless it is empty."""
        batch, self._batch, self._size = self._batch, [], 0
        if batch:
            yield batch


class RecordMaker:
    """Converter of the messages of one partition to records."""

    def __init__(self, labels: dict[str, str], part: PartitionRange, offsets: bool, keys: Keys) -> None:
        self._own = {**labels, COLLECTION: part.topic, "kafka.partition": str(part.partition)}
        self._part, self._offsets, self._keys = part, offsets, keys
        self._node = labels[SOURCE_CONNECTOR_ID]
        self._prefix = f"{part.topic}/{part.partition}/"

    def block(self, messages: list[Message]) -> Block:
        """Return the messages as a block."""
        topic, partition = self._part.topic, self._part.partition

        nacks: dict[int, tuple[str, Nack]] = {}

        def boundary(place: int) -> list[Any]:
            return [topic, partition, _offset(messages[place]) + 1]

        def again(places: Sequence[int]) -> list[Record]:
            return self._records([messages[place] for place in places], {}, positions=True)

        if self._keys >= Keys.POSITIONS:
            return Block(self._records(messages, nacks, positions=True), boundary, nacks=nacks, again=again)

        def positions() -> list[Any]:
            return [f"{self._prefix}{message.offset()}" for message in messages]

        def complete(place: int, record: Record) -> None:
            record.position = f"{self._prefix}{messages[place].offset()}"

        records = self._records(messages, nacks, positions=False)
        return Block(records, boundary, complete, nacks, again=again, positions=positions)

    def _records(self, messages: list[Message], nacks: dict[int, tuple[str, Nack]], positions: bool) -> list[Record]:
        """Return the messages as records; add to ``nacks`` those with a header that no record can hold."""
        records: list[Record] = []
        last, metadata = None, self._own
        prefix, offsets = self._prefix, self._offsets
        for message in messages:
            time_ = message.timestamp()
            try:
                headers = headers_of(message)
            except SystemError as error:
                nacks[len(records)] = (self._node, without_unreadable(message, error))
                headers = headers_of(message)
            if headers or offsets:
                metadata, last = self._metadata(message, time_, headers), None
            elif time_ != last:
                # messages with the same timestamp share their metadata
                metadata, last = self._metadata(message, time_, None), time_
            position = f"{prefix}{message.offset()}" if positions else ""
            records.append(Record(position, metadata, message.value(), message.key()))
        return records

    def _metadata(self, message: Message, time_: tuple[int, int], headers: Any) -> dict[str, str]:
        made = dict(self._own)
        # -1 is Kafka's own way to say that a message has no time
        if time_[0] != TIMESTAMP_NOT_AVAILABLE and time_[1] >= 0:
            made[CREATED_AT] = str(time_[1] * 1_000_000)
        if self._offsets:
            made["kafka.offset"] = str(message.offset())
        # the last one of each name, which may be text where an earlier one is not
        for name, value in dict(headers or ()).items():
            made |= header_metadata(name, value)
        return made
