"""Topics of a cluster: ids, configs and offsets; those that a destination writes to are created if missing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, cast

import re2
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclOperation,  # pyright: ignore[reportPrivateImportUsage]
    AdminClient,
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
    OffsetSpec,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)
from confluent_kafka.cimpl import NewTopic

from conduit_dagster.connectors.kafka.kafka_client import NO_TOPIC, KafkaErrors, client_config, kafka_error, make_client
from conduit_dagster.connectors.kafka.settings import KafkaDestinationSettings, KafkaSettings
from conduit_dagster.connectors.kafka.staged_messages import StagedChunk
from conduit_dagster.record import Nack
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Refusal, Rejected

_PAUSE = 0.05
_SOON = 5.0
"""Seconds to wait for any answer of a broker."""
_EARLIEST, _LATEST = cast(OffsetSpec, OffsetSpec.earliest()), cast(OffsetSpec, OffsetSpec.latest())
_DELIVERIES: Final = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}
"""Settings of a new topic of deliveries. The newest segment is never compacted, and each start reads all of it: with
Kafka's default of 1 GB that would be some million hashes."""
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
            self.client.describe_cluster(request_timeout=_SOON).result(2 * _SOON)
        except (KafkaException, TimeoutError):
            return False
        return True

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
        asked = self.client.describe_topics(TopicCollection(list(names)), request_timeout=self._settings.timeout)
        found: dict[str, tuple[str, int]] = {}
        for name, future in asked.items():
            try:
                one = self._result(future)
            except KafkaException as error:
                if kafka_error(error).code() not in NO_TOPIC:
                    raise self._failed(error, f"the topic {name} can't be described", name) from None
            else:
                found[name] = (str(one.topic_id), len(one.partitions))
        return found

    def lacking(self, right: AclOperation, names: Sequence[str]) -> list[str]:
        """Return those of the topics for which the user lacks a right, as far as brokers tell."""
        topics, seconds = TopicCollection(list(names)), self._settings.timeout
        asked = self.client.describe_topics(topics, include_authorized_operations=True, request_timeout=seconds)
        return [name for name, future in asked.items() if not self._has(right, future)]

    def _has(self, right: AclOperation, future: Future[Any]) -> bool:
        try:
            operations = self._result(future).authorized_operations
        except KafkaException as error:
            return kafka_error(error).code() != KafkaError.TOPIC_AUTHORIZATION_FAILED
        return not operations or right in operations

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
        """Return the topics that exist, with their earliest and latest offsets."""
        found = self.describe(names)
        places = [(name, partition) for name, (_, count) in sorted(found.items()) for partition in range(count)]
        low = self.offsets(places, lambda _: _EARLIEST)
        high = self.offsets(places, lambda _: _LATEST)
        return {
            name: KnownTopic(
                name,
                topic_id,
                tuple(low[name, partition] for partition in range(count)),
                tuple(high[name, partition] for partition in range(count)),
            )
            for name, (topic_id, count) in found.items()
        }

    def offsets(
        self,
        places: Places,
        spec: Callable[[tuple[str, int]], OffsetSpec],
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[tuple[str, int], int]:
        """Return an offset per partition, by default as ``read_committed`` consumers see it; -1 if there is none."""
        if not places:
            return {}
        asked = self.client.list_offsets(
            {TopicPartition(*place): spec(place) for place in places},
            isolation_level=isolation,
            request_timeout=self._settings.timeout,
        )
        found: dict[tuple[str, int], int] = {}
        for one, future in asked.items():
            try:
                found[one.topic, one.partition] = self._result(future).offset
            except KafkaException as error:
                raise self._failed(error, f"offsets of {one.topic} can't be fetched", one.topic) from None
        return found

    def at_time(self, milliseconds: int, places: Places, ends: Mapping[tuple[str, int], int]) -> dict[Any, int]:
        """Return the first offset at or after a timestamp, by partition; the partition's end if there is none."""
        found = self.offsets(places, lambda _: OffsetSpec.for_timestamp(milliseconds))
        return {place: offset if offset >= 0 else ends[place] for place, offset in found.items()}

    def whole(self, topic: str) -> list[tuple[int, int]]:
        """Return earliest and latest offset of each partition, as ``read_uncommitted`` consumers see them."""
        count = self._partitions(topic)
        places = [(topic, partition) for partition in range(count)]
        low = self.offsets(places, lambda _: _EARLIEST)
        high = self.offsets(places, lambda _: _LATEST, IsolationLevel.READ_UNCOMMITTED)
        return [(low[place], high[place]) for place in places]

    def _partitions(self, topic: str) -> int:
        """Return the partition count of an existing topic; waits, because not every broker may know a new topic yet."""
        deadline = time.monotonic() + self._settings.timeout
        while (found := self.describe([topic]).get(topic)) is None:
            if time.monotonic() > deadline:
                raise self._errors.no_topic(topic)
            self.client.poll(_PAUSE)
        return found[1]

    def config(self, topic: str, name: str) -> str:
        """Return a config of a topic."""
        self._partitions(topic)
        resource = ConfigResource(ResourceType.TOPIC, topic)
        asked = self.client.describe_configs([resource], request_timeout=self._settings.timeout)
        try:
            return str(self._result(asked[resource])[name].value)
        except KafkaException as error:
            raise self._failed(error, f"the settings of {topic} can't be read", topic) from None

    def _result(self, future: Future[Any]) -> Any:
        return future.result(self._settings.timeout + 5)

    def _failed(self, error: Any, what: str, topic: str = "") -> Exception:
        self.client.poll(0)  # serve error_cb, which receives the reason of a failed connection
        return self._errors.verdict(error, what, topic)


class TargetTopics:
    """Target topics of a destination, each looked up once per attempt."""

    def __init__(self, settings: KafkaDestinationSettings, errors: KafkaErrors, cluster: Cluster) -> None:
        self._settings, self._errors, self._cluster = settings, errors, cluster
        self._found: set[str] = set()

    def check_deliveries(self) -> None:
        """Create the topic of deliveries if it is missing. Raises ``FatalError`` if it is not a compacted one."""
        name = self._settings.deliveries_topic
        if name in self._found:
            return
        is_new = not self._cluster.describe([name]) and self._create(NewTopic(name, 1, config=_DELIVERIES))
        policy = "compact" if is_new else self._cluster.config(name, "cleanup.policy")
        if policy != "compact":
            # retention would remove hashes, and their deliveries would be written twice
            message = f"the topic {name} has cleanup.policy={policy}"
            fix = (
                f"kafka-configs.sh --bootstrap-server {self._settings.place} --alter --entity-type topics "
                f"--entity-name {name} --add-config cleanup.policy=compact"
            )
            raise self._errors.fatal(message, "kafka.not_compacted", fix, name)
        self._found.add(name)

    def check_fixed(self, name: str | None) -> None:
        """Check the fixed topic of all records. Raises ``FatalError`` if it is missing and must not be created."""
        names = [name] if name is not None else []
        found = self._cluster.describe(names or [self._settings.deliveries_topic])
        if name is not None and name not in found and self._settings.create_topics == "never":
            raise self._errors.no_topic(name)

    def ensured(
        self, chunks: Iterator[tuple[int, StagedChunk]], fixed: str | None
    ) -> Iterator[tuple[int, StagedChunk]]:
        """Yield the chunks after ensuring that their topics exist. Raises ``Rejected`` for records that name a missing
        topic, or one that can't exist beside the others, ``FatalError`` for such a fixed one."""
        for first, chunk in chunks:
            for group in chunk.groups:
                nack = None if group.topic in self._found else self._nack(group.topic, fixed is not None)
                if nack is not None:
                    nacks = [Refusal(first + place, nack) for place in group.all_places]
                    raise Rejected(*nacks[0], more=nacks[1:])
            yield first, chunk

    def _nack(self, name: str, is_fixed: bool) -> Nack | None:
        """Return the nack of records that name a topic which is missing; None if it exists by now. Raises for a fixed
        one."""
        try:
            if self._is_there(name):
                return None
        except FatalError as error:
            if is_fixed or error.code not in ("kafka.topic_name", "kafka.no_right"):
                raise
            return Nack(error.code, error.message)
        if is_fixed:
            raise self._errors.no_topic(name)
        return Nack("kafka.no_topic", f"there is no topic {name}")

    def _is_there(self, name: str) -> bool:
        if not self._cluster.describe([name]):
            if self._settings.create_topics == "never":
                return False
            self._create(NewTopic(name))
        self._found.add(name)
        return True

    def _create(self, topic: NewTopic) -> bool:
        """Create a topic; return False if another process has created it meanwhile."""
        asked = self._cluster.client.create_topics([topic], request_timeout=self._settings.timeout)
        try:
            asked[topic.topic].result(self._settings.timeout + 5)
        except KafkaException as error:
            if kafka_error(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._errors.verdict(error, f"the topic {topic.topic} can't be created", topic.topic) from None
            return False
        return True

    def require_rights(self, fixed: str | None, with_deliveries: bool) -> None:
        """Raise ``FatalError`` (``kafka.no_right``) if the user may not write to a topic whose name is known."""
        own = [self._settings.deliveries_topic] if with_deliveries else []
        self._cluster.require_readable(own)
        self._cluster.require_writable([*own, *([fixed] if fixed else [])])

    def unwritable(self) -> list[str]:
        """Return those of the known topics that the user may not write to."""
        return self._cluster.lacking(AclOperation.WRITE, sorted(self._found))

    def missing(self) -> list[str]:
        """Return those of the known topics that are gone."""
        known = sorted(self._found)
        found = self._cluster.describe(known)
        return [name for name in known if name not in found]

    def forget(self, name: str) -> None:
        """Forget a topic, so that it is looked up again."""
        self._found.discard(name)

    def forget_all(self) -> None:
        """Forget all topics: until the next attempt any of them may be deleted."""
        self._found.clear()
