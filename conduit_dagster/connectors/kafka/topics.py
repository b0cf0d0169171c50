"""Topics that a destination writes to: looked up, checked, and created if they are missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from confluent_kafka.admin import AclOperation  # pyright: ignore[reportPrivateImportUsage]
from confluent_kafka.cimpl import NewTopic

from conduit_dagster.connectors.kafka.kafka_client import KafkaErrors
from conduit_dagster.connectors.kafka.kafka_cluster import Cluster
from conduit_dagster.connectors.kafka.kafka_position import NO_ID, is_recreated
from conduit_dagster.connectors.kafka.settings import KafkaDestinationSettings
from conduit_dagster.connectors.kafka.staged_messages import StagedChunk
from conduit_dagster.record import Nack
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Refusal, Rejected

_DELIVERIES: Final = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}
"""Settings of a new topic of deliveries. The newest segment is never compacted, and each start reads all of it: with
Kafka's default of 1 GB that would be some million hashes."""


class TargetTopics:
    """Target topics of a destination, each looked up once per attempt."""

    def __init__(self, settings: KafkaDestinationSettings, errors: KafkaErrors, cluster: Cluster) -> None:
        self._settings, self._errors, self._cluster = settings, errors, cluster
        self._found: dict[str, str] = {}
        """Known topics, with their ids: ``NO_ID`` of one that was created here."""

    def check_deliveries(self) -> None:
        """Create the topic of deliveries if it is missing. Raises ``FatalError`` if it is not a compacted one."""
        name = self._settings.deliveries_topic
        if name in self._found:
            return
        found = self._cluster.describe([name])
        is_new = not found and self._cluster.create(NewTopic(name, 1, config=_DELIVERIES))
        policy = "compact" if is_new else self._cluster.config(name, "cleanup.policy")
        if policy != "compact":
            # retention would remove hashes, and their deliveries would be written twice
            message = f"the topic {name} has cleanup.policy={policy}"
            fix = (
                f"kafka-configs.sh --bootstrap-server {self._settings.place} --alter --entity-type topics "
                f"--entity-name {name} --add-config cleanup.policy=compact"
            )
            raise self._errors.fatal(message, "kafka.not_compacted", fix, name)
        self._found[name] = found[name][0] if found else NO_ID

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
                    raise Rejected(*nacks[0], more=nacks[1:] or None)
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
        found = self._cluster.describe([name])
        if not found:
            if self._settings.create_topics == "never":
                return False
            self._cluster.create(NewTopic(name))
        self._found[name] = found[name][0] if found else NO_ID
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

    def remade(self) -> list[str]:
        """Return those of the known topics that were deleted and created again since they were looked up."""
        found = self._cluster.describe(sorted(self._found))
        return [name for name, (now, _) in found.items() if is_recreated(self._found[name], now)]

    def out_of_sync(self, first: str) -> str:
        """Return in words a partition that lacks a replica in sync, of topic ``first`` if it has one; else empty."""
        return self._cluster.out_of_sync(sorted(self._found, key=lambda name: (name != first, name)))

    def forget(self, name: str) -> None:
        """Forget a topic, so that it is looked up again."""
        self._found.pop(name, None)

    def forget_all(self) -> None:
        """Forget all topics: until the next attempt any of them may be deleted."""
        self._found.clear()
