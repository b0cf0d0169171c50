"""Offsets of delivered messages, committed to a consumer group for monitors of its lag. They are never read back."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Final

import structlog
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from conduit_dagster.connectors.kafka.kafka_client import NO_TOPIC, KafkaErrors, kafka_error
from conduit_dagster.connectors.kafka.kafka_cluster import Cluster
from conduit_dagster.connectors.kafka.kafka_position import KafkaPosition
from conduit_dagster.connectors.kafka.settings import KafkaSourceSettings
from conduit_dagster.daemon_threads import BY_HAND, IN_RUN, has_ended
from conduit_dagster.sdk import ConnectorContext

_HAS_MEMBERS: Final = (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP)
"""Brokers take offsets from outside only for a group that no consumer has joined."""


class GroupOffsets:
    """Committer of one source's offsets. A failure only logs a warning, and no answer is awaited for long."""

    def __init__(
        self, settings: KafkaSourceSettings, context: ConnectorContext, errors: KafkaErrors, cluster: Cluster
    ) -> None:
        self._group = errors.rights.group
        self._timeout, self._node = settings.timeout, context.full_id
        self._errors, self._cluster = errors, cluster
        self._answer: Future[ConsumerGroupTopicPartitions] | None = None
        self._unsent: list[TopicPartition] = []
        """The newest offsets, where they wait for an answer to the ones before."""

    def commit(self, position: KafkaPosition) -> None:
        """Commit the next offset of each partition; later, if the last commit is still unanswered."""
        self._unsent = [
            TopicPartition(name, partition, offset)
            for name, topic in position.topics.items()
            for partition, offset in enumerate(topic.next)
        ]
        if self._is_answered(0):
            self._send()
            self._is_answered(IN_RUN)

    def _send(self) -> None:
        if self._unsent:
            wanted, self._unsent = [ConsumerGroupTopicPartitions(self._group, self._unsent)], []
            asked = self._cluster.client.alter_consumer_group_offsets(wanted, request_timeout=self._timeout)
            self._answer = asked[self._group]

    def close(self) -> None:
        """Wait for the last commit, for some seconds; then for that of offsets that waited for its answer."""
        if self._is_answered(BY_HAND):
            self._send()
            self._is_answered(BY_HAND)
        self._answer, self._unsent = None, []

    def _is_answered(self, seconds: float) -> bool:
        if self._answer is None:
            return True
        if not has_ended(self._answer, seconds):
            self._warn("the brokers have not answered yet")
            return False
        answer, self._answer = self._answer, None
        try:
            placed = answer.result().topic_partitions or ()
        except KafkaException as error:
            self._warn(self._verdict(error))
        else:
            # a deleted topic stays in the position, and has no lag
            refused = [one for one in placed if one.error is not None and one.error.code() not in NO_TOPIC]
            for one in refused[:1]:
                self._warn(self._verdict(one.error, one.topic))
        return True

    def _verdict(self, error: Any, topic: str = "") -> str:
        if kafka_error(error).code() in _HAS_MEMBERS:
            return f"the group {self._group} has members of its own: set groupID to another group"
        found = self._errors.verdict(error, f"offsets can't be committed to the group {self._group}", topic)
        return f"{found.message}; {found.fix}" if found.fatal else found.message

    def _warn(self, error: str) -> None:
        structlog.get_logger().warning("offsets not committed", node=self._node, error=error)
