"""The driver's view of a cluster: topics with their ids, configs, rights and offsets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, cast

import re2
from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclOperation,  # pyright: ignore[reportPrivateImportUsage]
    AdminClient,
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
    OffsetSpec,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)
from confluent_kafka.cimpl import NewTopic

from conduit_dagster.connectors.kafka.kafka_client import (
    NO_TOPIC,
    SILENT,
    KafkaErrors,
    client_config,
    kafka_error,
    make_client,
)
from conduit_dagster.connectors.kafka.kafka_position import NO_EPOCH, NO_ID
from conduit_dagster.connectors.kafka.settings import KafkaSettings
from conduit_dagster.recovery.errors import FatalError

_PAUSE = 0.05
_SOON = 5.0
"""Seconds to wait for any answer of a broker."""
_FIRST = 3.0
"""Seconds to wait for a broker before the client is made to look whether another one has taken its place."""
_LEADER_CHANGES = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    # a new leader does not know yet what has reached all replicas
    KafkaError.OFFSET_NOT_AVAILABLE,
)
"""Answers while a partition gets another leader."""
_EARLIEST, _LATEST = cast(OffsetSpec, OffsetSpec.earliest()), cast(OffsetSpec, OffsetSpec.latest())
Places = Sequence[tuple[str, int]]
"""Topics and partitions."""


class KnownTopic(NamedTuple):
    """Current state of a topic."""

    name: str
    id: str
    low: tuple[int, ...]
    """The earliest offset of each partition."""
    high: tuple[int, ...]
    """The last stable offset of each partition: its end for ``read_committed`` consumers."""
    epochs: tuple[int, ...]
    """The epoch of each partition's leader."""


class FoundOffset(NamedTuple):
    """An offset of a partition, -1 if there is none, and the epoch of the leader that gave it."""

    offset: int
    epoch: int


class WholeTopic(NamedTuple):
    """A topic as ``read_uncommitted`` consumers see it."""

    id: str
    ends: tuple[tuple[int, int], ...]
    """Earliest and latest offset of each partition."""


class Cluster:
    """Admin client of the driver, created on demand."""

    def __init__(self, settings: KafkaSettings, errors: KafkaErrors) -> None:
        self._settings, self._errors = settings, errors
        self._lock = threading.Lock()
        self._client: AdminClient | None = None

    @property
    def client(self) -> AdminClient:
        """The client. It is kept, because its pending requests are aborted with it."""
        with self._lock:
            if self._client is None:
                config = client_config(self._settings, self._errors)
                self._client = make_client(AdminClient, config, self._errors)
            return self._client

    def close(self) -> None:
        """Drop the client; the next request creates another."""
        with self._lock:
            self._client = None

    def answers(self) -> bool:
        """Return whether a broker answers within some seconds."""
        try:
            # any broker may answer this; most other requests wait for one that may be down
            self.client.list_topics(timeout=_SOON)
        except KafkaException:
            return False
        return True

    def _of_controller(self, ask: Callable[[float], Mapping[Any, Future[Any]]]) -> dict[Any, Any]:
        """Return the controller's answers, or a ``KafkaException`` each; ``ask`` takes the seconds to wait.

        In KRaft any broker may be a client's controller. While that one is down, the client waits for it in vain until
        it learns of another, which it does not by itself.
        """
        found: dict[Any, Any] = {}
        for seconds in self._patience():
            found = self._answers(ask(seconds))
            if not any(isinstance(one, KafkaException) and kafka_error(one).code() in SILENT for one in found.values()):
                break
            self._refresh()
        return found

    def _patience(self) -> Iterator[float]:
        """Yield the seconds of each attempt: more each time, for brokers that are slow, ``timeout`` in all."""
        ends, seconds = time.monotonic() + self._settings.timeout, _FIRST
        yield min(seconds, self._settings.timeout)
        while (left := ends - time.monotonic()) > _PAUSE:
            seconds *= 2
            yield min(seconds, left)

    def _refresh(self) -> None:
        """Have the client learn again which broker is the controller, and which ones lead partitions."""
        with suppress(KafkaException):
            self.client.list_topics(timeout=_FIRST)
        self.client.poll(_PAUSE)

    def _answers(self, asked: Mapping[Any, Future[Any]]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, future in asked.items():
            try:
                found[key] = future.result(self._settings.timeout + 5)
            except KafkaException as error:
                found[key] = error
            except TimeoutError:
                # a process that was frozen meanwhile looks at its clock before the client looks at the answer
                found[key] = KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return found

    # -- topics -------------------------------------------------------------------------------------------------

    def matching(self, patterns: Sequence[str]) -> list[str]:
        """Return the topics whose whole name matches a pattern, without Kafka's internal topics."""
        if not patterns:
            return []
        compiled = [re2.compile(pattern) for pattern in patterns]
        try:
            names = list(self.client.list_topics(timeout=self._settings.timeout).topics)
        except KafkaException as error:
            raise self._failed(error, "topics can't be listed") from None
        found = [name for name in names if any(one.fullmatch(name) for one in compiled)]
        return sorted(name for name in found if not name.startswith("__"))

    def describe(self, names: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Return topic id and partition count of those topics that exist."""
        if not names:
            return {}
        found: dict[str, tuple[str, int]] = {}
        for name, one in self._described(names).items():
            if not isinstance(one, KafkaException):
                found[name] = (str(one.topic_id), len(one.partitions))
            elif kafka_error(one).code() not in NO_TOPIC:
                raise self._failed(one, f"the topic {name} can't be described", name)
        return found

    def _described(self, names: Sequence[str], **more: Any) -> dict[str, Any]:
        topics = TopicCollection(list(names))
        return self._of_controller(lambda seconds: self.client.describe_topics(topics, request_timeout=seconds, **more))

    def lacking(self, right: AclOperation, names: Sequence[str]) -> list[str]:
        """Return those of the topics for which the user lacks a right, as far as brokers tell."""
        found = self._described(names, include_authorized_operations=True)
        return [name for name, one in found.items() if not _has(right, one)]

    def out_of_sync(self, names: Sequence[str]) -> str:
        """Return in words the first partition that lacks a leader or a replica in sync; empty if brokers show none."""
        for name, one in self._described(names).items():
            for part in [] if isinstance(one, KafkaException) else one.partitions:
                if part.leader is None or part.leader.id < 0:
                    return f"no broker leads {name}, partition {part.id}"
                if len(part.isr) < len(part.replicas):
                    return (
                        f"{len(part.isr)} of {len(part.replicas)} replicas of {name}, partition {part.id}, are in sync"
                    )
        return ""

    def require_readable(self, names: Sequence[str]) -> None:
        """Raise ``FatalError`` (``kafka.no_right``) if the user may not read one of the topics."""
        self._require(AclOperation.READ, names, "can't be read")

    def require_writable(self, names: Sequence[str]) -> None:
        """Raise ``FatalError`` (``kafka.no_right``) if the user may not write to one of the topics."""
        self._require(AclOperation.WRITE, names, "can't be written to")

    def _require(self, right: AclOperation, names: Sequence[str], what: str) -> None:
        if name := next(iter(self.lacking(right, names) if names else ()), ""):
            raise self._errors.verdict(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), f"{name} {what}", name)

    def known(self, names: Sequence[str]) -> dict[str, KnownTopic]:
        """Return the topics that exist, with their earliest and latest offsets.

        One that is deleted meanwhile is left out as well, as soon as brokers describe it no more.
        """
        deadline = time.monotonic() + self._settings.timeout
        while True:
            try:
                return self._described_offsets(names)
            except FatalError as error:
                if error.code != "kafka.no_topic" or time.monotonic() > deadline:
                    raise
                self.client.poll(_PAUSE)

    def _described_offsets(self, names: Sequence[str]) -> dict[str, KnownTopic]:
        found = self.describe(names)
        places = [(name, partition) for name, (_, count) in sorted(found.items()) for partition in range(count)]
        low = self.offsets(places, lambda _: _EARLIEST)
        high = self._found(places, lambda _: _LATEST)
        return {
            name: KnownTopic(
                name,
                topic_id,
                tuple(low[name, partition] for partition in range(count)),
                tuple(high[name, partition].offset for partition in range(count)),
                # without an id, epochs may be those of an earlier topic of this name
                tuple(NO_EPOCH if topic_id == NO_ID else high[name, partition].epoch for partition in range(count)),
            )
            for name, (topic_id, count) in found.items()
        }

    def offsets(
        self,
        places: Places,
        spec: Callable[[tuple[str, int]], OffsetSpec],
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[tuple[str, int], int]:
        """Return an offset per partition, by default as ``read_committed`` consumers see it; -1 if there is none.

        A partition without a leader is asked for again, until another broker leads it.
        """
        return {place: one.offset for place, one in self._found(places, spec, isolation).items()}

    def _found(
        self,
        places: Places,
        spec: Callable[[tuple[str, int]], OffsetSpec],
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[tuple[str, int], FoundOffset]:
        found: dict[tuple[str, int], FoundOffset] = {}
        failed: dict[tuple[str, int], KafkaException] = {}
        for seconds in self._patience():
            left = {TopicPartition(*place): spec(place) for place in places if place not in found}
            answers = self._offsets(left, isolation, seconds)
            found |= {place: one for place, one in answers.items() if isinstance(one, FoundOffset)}
            failed = {place: one for place, one in answers.items() if isinstance(one, KafkaException)}
            if not failed or any(kafka_error(one).code() not in (*SILENT, *_LEADER_CHANGES) for one in failed.values()):
                break
            self._refresh()
        for (topic, _), error in failed.items():
            raise self._failed(error, f"offsets of {topic} can't be fetched", topic)
        return found

    def _offsets(
        self, wanted: dict[TopicPartition, OffsetSpec], isolation: IsolationLevel, seconds: float
    ) -> dict[tuple[str, int], FoundOffset | KafkaException]:
        asked = self.client.list_offsets(wanted, isolation_level=isolation, request_timeout=seconds)
        found: dict[tuple[str, int], FoundOffset | KafkaException] = {}
        for place, one in self._answers(asked).items():
            if isinstance(one, KafkaException):
                answer = one
            elif one.offset == OFFSET_INVALID:
                # of a partition whose leader is down, the client gives this for an offset, and no error
                answer = KafkaException(KafkaError(KafkaError._TIMED_OUT))
            else:
                answer = FoundOffset(one.offset, NO_EPOCH if one.leader_epoch is None else one.leader_epoch)
            found[place.topic, place.partition] = answer
        return found

    def at_time(self, milliseconds: int, places: Places, ends: Mapping[tuple[str, int], int]) -> dict[Any, int]:
        """Return the first offset at or after a timestamp, by partition; the partition's end if there is none."""
        found = self.offsets(places, lambda _: OffsetSpec.for_timestamp(milliseconds))
        return {place: offset if offset >= 0 else ends[place] for place, offset in found.items()}

    def whole(self, topic: str) -> WholeTopic:
        """Return id and offsets of an existing topic, as ``read_uncommitted`` consumers see them."""
        topic_id, count = self._existing(topic)
        places = [(topic, partition) for partition in range(count)]
        low = self.offsets(places, lambda _: _EARLIEST)
        high = self.offsets(places, lambda _: _LATEST, IsolationLevel.READ_UNCOMMITTED)
        return WholeTopic(topic_id, tuple((low[place], high[place]) for place in places))

    def stable_end(self, topic: str, partition: int) -> int:
        """Return the offset up to which no transaction is open."""
        return self.offsets([(topic, partition)], lambda _: _LATEST)[topic, partition]

    def _existing(self, topic: str) -> tuple[str, int]:
        """Return id and partition count of an existing topic; waits, since not every broker may know a new one yet."""
        deadline = time.monotonic() + self._settings.timeout
        while (found := self.describe([topic]).get(topic)) is None:
            if time.monotonic() > deadline:
                raise self._errors.no_topic(topic)
            self.client.poll(_PAUSE)
        return found

    def config(self, topic: str, name: str) -> str:
        """Return a config of a topic."""
        self._existing(topic)
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = self._of_controller(lambda seconds: self.client.describe_configs([resource], request_timeout=seconds))
        if isinstance(found[resource], KafkaException):
            raise self._failed(found[resource], f"the settings of {topic} can't be read", topic)
        return str(found[resource][name].value)

    def create(self, topic: NewTopic) -> bool:
        """Create a topic; return False if another process has created it meanwhile."""
        found = self._of_controller(lambda seconds: self.client.create_topics([topic], request_timeout=seconds))
        error = found[topic.topic]
        if error is None:
            return True
        if kafka_error(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise self._failed(error, f"the topic {topic.topic} can't be created", topic.topic)
        return False

    def _failed(self, error: Any, what: str, topic: str = "") -> Exception:
        self.client.poll(0)  # serve error_cb, which receives the reason of a failed connection
        return self._errors.verdict(error, what, topic)


def _has(right: AclOperation, described: Any) -> bool:
    if isinstance(described, KafkaException):
        return kafka_error(described).code() != KafkaError.TOPIC_AUTHORIZATION_FAILED
    return not described.authorized_operations or right in described.authorized_operations
