"""Target topics of a destination: lookup and creation."""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewTopic

from conduit_dagster.connectors.kafka.cluster_topics import Cluster
from conduit_dagster.connectors.kafka.kafka_errors import KafkaErrors, kafka_error
from conduit_dagster.connectors.kafka.settings import KafkaDestinationSettings
from conduit_dagster.connectors.kafka.staged_messages import StagedChunk
from conduit_dagster.record import Nack
from conduit_dagster.sdk import Refusal, Rejected


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
        is_new = not self._cluster.describe([name]) and self._create(
            NewTopic(name, 1, config={"cleanup.policy": "compact"})
        )
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
        topic, ``FatalError`` for a missing fixed one."""
        for first, chunk in chunks:
            for group in chunk.groups:
                if group.topic not in self._found and not self._is_there(group.topic):
                    if fixed is not None:
                        raise self._errors.no_topic(group.topic)
                    nack = Nack("kafka.no_topic", f"there is no topic {group.topic}")
                    nacks = [Refusal(first + place, nack) for place in group.all_places]
                    raise Rejected(*nacks[0], more=nacks[1:])
            yield first, chunk

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

    def forget(self, name: str) -> None:
        """Forget a topic, so that it is looked up again."""
        self._found.discard(name)

    def forget_all(self) -> None:
        """Forget all topics: until the next attempt any of them may be deleted."""
        self._found.clear()
