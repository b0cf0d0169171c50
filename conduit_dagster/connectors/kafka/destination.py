"""The ``kafka`` destination: writes messages exactly once, in one transaction with the delivery's hash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, Producer

from conduit_dagster.connectors.kafka.delivery_session import ClaimMessage, DeliverySession
from conduit_dagster.connectors.kafka.kafka_client import NO_TOPIC, AccessRights, KafkaErrors, own_id
from conduit_dagster.connectors.kafka.kafka_cluster import Cluster
from conduit_dagster.connectors.kafka.message_sender import MessageSender, PlainProducer, SendError
from conduit_dagster.connectors.kafka.message_writer import MessageWriter
from conduit_dagster.connectors.kafka.settings import KafkaDestinationSettings
from conduit_dagster.connectors.kafka.staged_messages import MessageLayout, places_of, staged_chunks, staged_message
from conduit_dagster.connectors.kafka.topics import TargetTopics
from conduit_dagster.record import Nack, Record
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import (
    AlreadyClaimed,
    Claim,
    Claimed,
    ConnectorContext,
    Dataset,
    Delivery,
    Refusal,
    Rejected,
    StagedDestination,
    Strategy,
    Target,
    Writer,
    WriterTask,
)

_DATA = {
    KafkaError.MSG_SIZE_TOO_LARGE: "too_large",
    KafkaError.RECORD_LIST_TOO_LARGE: "too_large",
    KafkaError.INVALID_RECORD: "invalid_record",
    KafkaError.INVALID_MSG: "invalid_record",
    KafkaError.INVALID_TIMESTAMP: "invalid_timestamp",
}
"""Errors caused by a record."""


_LOG = "deliveries"
"""Key of a target: the topic of deliveries when the step was prepared."""


class BatchRefusedError(Exception):
    """Brokers rejected messages without naming the record."""


class KafkaDestination(StagedDestination):
    """Destination that writes records as messages to one or several topics.

    Tasks stage messages; the driver writes a delivery's messages and its hash in one transaction. The topic
    ``conduit-deliveries`` keeps the hashes of 1,000 steps. At-least-once and at-most-once use no transactions. Messages
    with the same key go to the same partition, in record order. Consumers must use ``read_committed``; others also see
    the messages of aborted transactions.
    """

    name = "kafka"
    Settings = KafkaDestinationSettings
    settings: KafkaDestinationSettings
    strategies = frozenset({"exactly-once", "at-least-once", "at-most-once"})
    divisible = True
    skips_records = True
    changes_records = False

    def __init__(self, settings: KafkaDestinationSettings, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._layout = MessageLayout(settings)
        self._owner = own_id(settings.transactional_id, context)
        own = {settings.deliveries_topic: ("Read", "Write", "Describe", "DescribeConfigs", "Create")}
        rights = AccessRights(("Write", "Describe", "Create"), transactional_id=self._owner, others=own)
        self._errors = KafkaErrors(settings, rights)
        self._cluster = Cluster(settings, self._errors)
        self._session = DeliverySession(self._owner, settings, self._errors, self._cluster)
        self._plain = PlainProducer(settings, self._errors)
        self._topics = TargetTopics(settings, self._errors, self._cluster)

    @classmethod
    def strategies_with(cls, settings: Mapping[str, str]) -> frozenset[Strategy]:
        """Return the possible strategies: only at-most-once unless ``acks`` is ``all``."""
        return cls.strategies if settings.get("acks", "all") == "all" else frozenset({"at-most-once"})

    @property
    def owned(self) -> str | None:
        """The transactional id, with exactly-once: two destinations with one would fence one another without end."""
        return f"transactional-id {self._owner} at {self.settings.place}" if self._is_exact else None

    @property
    def topics_written(self) -> list[tuple[str, str]]:
        """The topics that it writes to, with their servers, as far as no record names them."""
        topics = (self._layout.topic, self.settings.deliveries_topic if self._is_exact else None)
        return [(self.settings.servers, topic) for topic in topics if topic is not None]

    @property
    def address(self) -> str:
        """Servers and topic; the template instead of the topic if records choose the topic."""
        return f"{self.settings.place} {self.settings.topic}"

    @property
    def hashes_at(self) -> str:
        """The topic of deliveries, and the transactional id that they are stored under."""
        return f"deliveries-topic {self.settings.deliveries_topic} and transactional-id {self._owner}"

    @property
    def dataset(self) -> Dataset | None:
        """The topic, if its name is fixed."""
        if self._layout.topic is None:
            return None
        return Dataset(f"kafka://{self.settings.place.partition(',')[0]}", self._layout.topic)

    @property
    def _is_exact(self) -> bool:
        return self.context.strategy == "exactly-once"

    # -- in tasks -----------------------------------------------------------------------------------------------

    def writer(self, task: WriterTask) -> Writer:
        """Return a writer that stages messages."""
        return MessageWriter(task, self._layout)

    # -- on the driver ------------------------------------------------------------------------------------------

    def staged_row(self, delivery: Delivery, place: int) -> Record | None:
        """Return the record of a staged ``opencdc/json`` message; for other formats, a record with the message's value,
        as a document if that is a JSON object."""
        message = staged_message(delivery, place)
        return None if message is None else self._layout.record(*message)

    def close(self) -> None:
        """Close the driver's connections."""
        self._session.close()
        self._plain.close()
        self._cluster.close()
        self._topics.forget_all()

    def check(self) -> None:
        """Connect, create or check the topic of deliveries, and check a topic with a fixed name, and the rights."""
        if self._is_exact:
            self._topics.check_deliveries()
        self._topics.check_fixed(self._layout.topic)
        self._topics.require_rights(self._layout.topic, self._is_exact)

    def fence(self, epoch: int) -> None:
        """Fence older owners: their open transactions are aborted, and nothing more of theirs is written."""
        if self._is_exact:
            self._topics.check_deliveries()
            self._session.fence()

    def target(self, previous: Target | None) -> Target:
        """Return with exactly-once which topic of deliveries gets the hash."""
        if not self._is_exact:
            return super().target(previous)
        with self._opened():
            return {_LOG: list(self._session.log)}

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the delivery was published: its hash is stored, and its messages were committed with it.

        Raises ``FatalError`` if a hash could be lost, unless such a delivery is to be sent again.
        """
        if not self._is_exact:
            return False
        with self._opened():
            is_there = self._session.claims.state(delivery) == "delivered"
            if not is_there and self.settings.on_deliveries_gone == "fail" and (what := self._lost(delivery)):
                raise self._errors.deliveries_gone(self.settings.deliveries_topic, what, delivery.step)
            return is_there

    def retarget(self, delivery: Delivery) -> Target | None:
        """Return the topic of deliveries as it is now, if it lost hashes and ``on-deliveries-gone`` is ``resend``."""
        if not self._is_exact:
            return None
        with self._opened():
            return {_LOG: list(self._session.log)} if self._lost(delivery) else None

    def _lost(self, delivery: Delivery) -> str:
        """Return in words how the hash of a delivery may have been lost; empty if it was never stored."""
        # a step that an older version prepared has no target
        before = delivery.target.get(_LOG)
        return self._session.log.problem(before) if before is not None else ""

    def claim(self, delivery: Delivery, state: Claim) -> Claimed:
        """Store ``state`` under the hash if it is free."""
        return self.claim_all([delivery], state)[0]

    def claim_all(self, deliveries: Sequence[Delivery], state: Claim) -> list[Claimed]:
        """Claim the hashes in one transaction."""
        if not self._is_exact:
            return [state for _ in deliveries]
        with self._opened():
            claims = self._session.claims
            free = [one for one in deliveries if claims.state(one) is None]
            for one in free:
                claims.require_known(one)
            if free:
                self._store([message for one in free for message in claims.putting(one, state)])
            return [self._session.claims.state(one) or state for one in deliveries]

    def _store(self, messages: Sequence[ClaimMessage]) -> None:
        try:
            self._session.commit(lambda producer: True, messages)
        except SendError as failed:
            name = self.settings.deliveries_topic
            raise self._unwritten(failed, f"claims can't be stored in {name}", name) from None

    def publish(self, delivery: Delivery) -> Target:
        """Write messages and hash in one transaction. Does nothing if the hash is already stored as delivered."""
        try:
            if self._is_exact:
                self._publish_once(delivery)
            else:
                self._plain.send(lambda producer: self._send(producer, delivery, self._plain.failures))
        except SendError as failed:
            raise self._refused(failed, delivery) from None
        return delivery.target

    def _opened(self) -> Any:
        self._topics.check_deliveries()
        return self._session.opened()

    def _publish_once(self, delivery: Delivery) -> None:
        with self._opened():
            claims = self._session.claims
            there = claims.state(delivery)
            if there == "delivered" or not delivery.records:
                return
            if there is not None:
                raise AlreadyClaimed(there)
            claims.require_known(delivery)
            messages = [*claims.putting(delivery, "delivered"), *claims.pruning(delivery)]
            failures = self._session.failures
            self._session.commit(lambda producer: self._send(producer, delivery, failures), messages)

    def _send(self, producer: Producer, delivery: Delivery, failures: Any) -> bool:
        chunks = self._topics.ensured(staged_chunks(delivery), self._layout.topic)
        sender = MessageSender(producer, failures, self.settings.message_timeout)
        return sender.send(chunks, lambda: reached("mid-publish", self.context.pipeline), delivery.records / 2)

    def _refused(self, failed: SendError, delivery: Delivery) -> Exception:
        """Return the error for messages that were not written: ``Rejected`` for records or a topic named by them, or an
        outage."""
        code, text = failed.error.code(), failed.error.str()
        if code == KafkaError._MSG_TIMED_OUT and self._topics.missing():
            # a client that learns of the deletion by itself holds the messages back
            code, failed.topic = KafkaError.UNKNOWN_TOPIC_OR_PART, ""
        failed.topic = failed.topic or self._topic_at_fault(code, delivery)
        if code in _DATA and self._is_of_records(code, failed.topic):
            if delivery.records == 1:
                # brokers do not say what is wrong with it
                hint = "; a compacted topic takes no message without a key" if _DATA[code] == "invalid_record" else ""
                return Rejected(0, Nack(f"kafka.{_DATA[code]}", f"{failed.topic}: {text}{hint}"))
            # of small messages, too, a batch may be larger than its topic allows
            limit = "; set batchBytes to 1,024 less than its max.message.bytes" if _DATA[code] == "too_large" else ""
            return BatchRefusedError(f"{failed.topic}: {text}{limit}")
        if (remade := self._remade(code, failed.topic)) is not None:
            self._topics.forget_all()
            return self._errors.topic_remade(remade)
        if code in NO_TOPIC and failed.topic == self.settings.deliveries_topic:
            self._topics.forget(failed.topic)
            return self._errors.deliveries_deleted(failed.topic)
        if code in NO_TOPIC and self.settings.create_topics == "auto":
            self._topics.forget(failed.topic)
            return self._errors.topic_deleted(failed.topic)
        about_topic = code in NO_TOPIC or code == KafkaError.TOPIC_AUTHORIZATION_FAILED
        if about_topic and self._layout.topic is None and (places := places_of(delivery, failed.topic)):
            name = "no_topic" if code in NO_TOPIC else "no_right"
            self._topics.forget(failed.topic)
            nacks = [Refusal(place, Nack(f"kafka.{name}", f"{failed.topic}: {text}")) for place in places[:1_000]]
            return Rejected(*nacks[0], more=nacks[1:] or None)
        return self._unwritten(failed, "messages can't be written", failed.topic)

    def _is_of_records(self, code: int, topic: str) -> bool:
        """Return whether a record can be at fault: not for a hash, and not for the time that the client gave it."""
        is_clock = code == KafkaError.INVALID_TIMESTAMP and self.settings.timestamp == "broker"
        return not is_clock and not (self._is_exact and topic == self.settings.deliveries_topic)

    def _remade(self, code: int, topic: str) -> str | None:
        """Return the topic that was deleted and created again, empty if it is not known which; None for another
        error."""
        if code not in (*NO_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError._MSG_TIMED_OUT):
            return None
        remade = self._topics.remade()
        if code == KafkaError._MSG_TIMED_OUT or topic in self._topics.missing():
            return next(iter(remade), None)
        return next(iter(remade), topic)

    def _unwritten(self, failed: SendError, what: str, topic: str) -> Exception:
        """Return the error for messages that are not a record's fault."""
        if failed.error.code() == KafkaError._MSG_TIMED_OUT:
            if which := self._topics.out_of_sync(topic):
                return self._errors.out_of_sync(f"{what}: {failed.error.str()}", which)
            if failed.is_late and self._cluster.answers():
                # of a process that was frozen, say: its messages time out before it learns of the transaction's end
                return self._errors.overdue(what, self.settings.transaction_timeout)
            limit = self.settings.message_timeout
            if not self._errors.has_lost_line(limit + self.settings.timeout) and self._cluster.answers():
                return self._errors.too_slow(what, limit)
        return self._errors.verdict(failed.error, what, topic)

    def _topic_at_fault(self, code: int, delivery: Delivery) -> str:
        """Return the topic of an error that names none: one of the delivery's that is missing, or may not be
        written."""
        fixed = self._layout.topic
        if code != KafkaError.TOPIC_AUTHORIZATION_FAILED and code not in NO_TOPIC:
            return fixed or ""
        refused = self._topics.missing() if code in NO_TOPIC else self._topics.unwritable()
        own = [name for name in refused if name in (self.settings.deliveries_topic, fixed)]
        named = (name for name in refused if name not in own and places_of(delivery, name))
        return next(iter(own), "") or next(named, "")
