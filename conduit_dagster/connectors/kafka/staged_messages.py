"""Messages made from records, staged in chunks that the publisher passes to the producer without touching each message.

Tasks write them; the driver reads them, also one by one for dead letters.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, NamedTuple, cast

import msgspec

from conduit_dagster import storage
from conduit_dagster.connectors.formats import OpenCdcJson, Template, make_format, nack_of
from conduit_dagster.connectors.kafka.message_headers import BINARY, HEADER
from conduit_dagster.connectors.kafka.settings import KafkaDestinationSettings, require_topic
from conduit_dagster.expressions import compile_template
from conduit_dagster.record import CREATED_AT, Nack, Record, decode
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Delivery, Refusal

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


class Messages(NamedTuple):
    """The messages of records, in order, by property."""

    topics: list[str]
    values: list[bytes | None]
    keys: list[bytes | None]
    headers: list[Any]
    """Names and values of each message's headers; None: it has none."""
    times: list[int | None]
    """Timestamps in milliseconds, 0 for the broker's time; None for each message: the broker's time for all."""


_json = msgspec.json.Encoder().encode
_after_of, _key_of = attrgetter("after"), attrgetter("key")
_PAYLOAD = "payload/json"


class _MessageError(Exception):
    """Error of a record that can't become a message, with its nack."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.nack = Nack(f"kafka.{code}", message)


class MessageLayout:
    """Converter of records to messages, from the settings of a destination."""

    def __init__(self, settings: KafkaDestinationSettings) -> None:
        self._settings = settings
        template = compile_template(settings.topic)
        self.topic = template.literal
        """The topic of all records; None if records choose their topics."""
        self._template: Callable[[Record], Any] = template
        self._format = make_format(settings.format, settings.format_options)
        self._is_payload = settings.format == _PAYLOAD

    def messages(self, records: list[Record]) -> tuple[Messages | None, list[Refusal]]:
        """Return the messages of valid records, in order, and the refusals of the others."""
        try:
            return self._messages(records), []
        except Exception:  # noqa: BLE001  # one record is at fault: find it
            return self._one_by_one(records)

    def record(self, value: bytes | None, key: bytes | None) -> Record:
        """Rebuild a record from a message, as far as the message contains it."""
        try:
            if isinstance(self._format, OpenCdcJson):
                return decode(value or b"")
            document = msgspec.json.decode(value or b"null")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            document = None
        return Record(0, {}, document if isinstance(document, dict) else value, key)

    def _one_by_one(self, records: list[Record]) -> tuple[Messages | None, list[Refusal]]:
        good: list[Record] = []
        refused: list[Refusal] = []
        for place, record in enumerate(records):
            try:
                self._messages([record])
                good.append(record)
            except _MessageError as error:
                refused.append(Refusal(place, error.nack))
            except Exception as error:  # noqa: BLE001  # whatever a record holds is its own nack
                refused.append(Refusal(place, nack_of(error)))
        return self._messages(good) if good else None, refused

    def _messages(self, records: list[Record]) -> Messages:
        values, keys = self._values(records), _as_bytes(map(_key_of, records))
        headers = self._headers(records)
        self._check_sizes(_sizes(values), _sizes(keys), headers)
        return Messages(self._topics(records), values, keys, headers or [None] * len(records), self._times(records))

    def _times(self, records: list[Record]) -> list[int | None]:
        if self._settings.timestamp != "createdAt":
            return [None] * len(records)
        return [_milliseconds(record) for record in records]

    def _topics(self, records: list[Record]) -> list[str]:
        if self.topic is not None:
            return [self.topic] * len(records)
        found: list[str] = []
        last, topic = None, ""
        for record in records:
            # reuse the topic of shared metadata only with the default template, which reads nothing else
            if record.metadata is not last or self._settings.topic != _BY_COLLECTION:
                last, topic = record.metadata, self._topic_of(record)
            found.append(topic)
        return found

    def _topic_of(self, record: Record) -> str:
        try:
            name = require_topic(str(self._template(record)))
        except ValueError as error:
            raise _MessageError("topic_name", str(error)) from None
        # a record must not be able to write the hash of a delivery, or an offset of a consumer group
        if name == self._settings.deliveries_topic or name.startswith("__"):
            raise _MessageError("topic_name", f"{name} is not a topic for records")
        return name

    def _values(self, records: list[Record]) -> list[bytes | None]:
        if self._is_payload:
            return _as_bytes(map(_after_of, records))
        if isinstance(self._format, Template):
            return [self._value(record) for record in records]
        data, refused = self._format.encode_block(records)
        if refused:
            raise ValueError(refused[0][1].message)
        # safe to split: these formats are JSON, which escapes line feeds
        lines: list[bytes | None] = [*data.split(b"\n")]
        lines.pop()
        return lines

    def _value(self, record: Record) -> bytes:
        data, refused = self._format.encode_block([record])
        if refused:
            raise ValueError(refused[0][1].message)
        return data.removesuffix(b"\n")

    def _headers(self, records: list[Record]) -> list[Any] | None:
        """Return the headers of each record; None if no record has any."""
        if self._settings.headers == "none":
            return None
        found: list[Any] = []
        last, own = None, None
        for record in records:
            if record.metadata is not last:
                last = record.metadata
                own = [_header(name, value) for name, value in last.items() if name.startswith(HEADER)] or None
            found.append(own)
        return found if any(found) else None

    def _check_sizes(self, values: Sequence[int], keys: Sequence[int], headers: Sequence[Any] | None) -> None:
        limit = self._settings.batch_bytes
        if max(values) + max(keys) <= limit and headers is None:
            return
        for value, key, own in zip(values, keys, headers or repeat(None), strict=False):
            size = value + key + sum(_HEADER + len(n.encode()) + len(v) for n, v in own or ())
            if size > limit:
                raise _MessageError("too_large", f"the message has {size} bytes, batchBytes allows {limit}")


_BY_COLLECTION = '{{ index .Metadata "opencdc.collection" }}'
_HEADER = 10
"""Maximum bytes of the length fields of a header."""


def _as_bytes(parts: Iterable[Any]) -> list[bytes | None]:
    return [_json(part) if type(part) is dict else part for part in parts]


def _sizes(data: Sequence[bytes | None]) -> list[int]:
    try:
        return list(map(len, data))  # type: ignore[arg-type]
    except TypeError:
        return [len(one) if one is not None else 0 for one in data]


def _header(name: str, value: str) -> tuple[str, bytes]:
    plain = name.removeprefix(HEADER)
    if plain.endswith(BINARY):
        return plain.removesuffix(BINARY), base64.b64decode(value)
    return plain, value.encode()


def _milliseconds(record: Record) -> int:
    time_ns = int(record.metadata.get(CREATED_AT) or 0)
    if not 0 <= time_ns < 1 << 63:
        raise _MessageError("invalid_timestamp", f"{CREATED_AT} is no time that a message can have: {time_ns:.3e} ns")
    return time_ns // 1_000_000


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StagedChunk).decode


def packed(messages: Messages) -> bytes:
    """Return messages as a chunk, as it is staged. Requires at least one."""
    data = _encode(StagedChunk(len(messages.values), sum(_sizes(messages.values)), _groups(messages)))
    return _HEAD.pack(len(data), len(messages.values)) + data


def _groups(messages: Messages) -> list[MessageGroup]:
    topics, values, keys, headers, times = messages
    whole = MessageGroup(topics[0], None, values, keys, headers if any(headers) else None)
    if times[0] is not None:
        whole.times = cast("list[int]", times)
    if topics.count(topics[0]) == len(topics):
        return [whole]
    found: dict[str, list[int]] = {}
    for place, topic in enumerate(topics):
        found.setdefault(topic, []).append(place)
    return [msgspec.structs.replace(whole.only(places, places), topic=topic) for topic, places in found.items()]


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
