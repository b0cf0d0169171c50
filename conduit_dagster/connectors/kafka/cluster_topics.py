"""Topic metadata of a cluster: topic ids, configs, and the earliest and latest offsets of partitions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, cast

import re2
from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
    OffsetSpec,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)

from conduit_dagster.connectors.kafka.kafka_client import client_config, make_client
from conduit_dagster.connectors.kafka.kafka_errors import NO_TOPIC, KafkaErrors, kafka_error
from conduit_dagster.connectors.kafka.settings import KafkaSettings

_PAUSE = 0.05
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
