"""The driver's transactional producer: fences older owners, and commits messages and the delivery's hash together.

The hashes are in a compacted topic.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, cast

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from conduit_dagster.connectors.kafka.kafka_client import (
    FENCED,
    NO_TOPIC,
    PASSING,
    KafkaErrors,
    client_config,
    fatal_errors,
    kafka_error,
    make_client,
)
from conduit_dagster.connectors.kafka.kafka_cluster import Cluster
from conduit_dagster.connectors.kafka.kafka_position import NO_ID, is_recreated
from conduit_dagster.connectors.kafka.message_sender import SendError, SendFailures, producer_config, purge
from conduit_dagster.connectors.kafka.settings import KafkaDestinationSettings
from conduit_dagster.connectors.kept_hashes import new_floor
from conduit_dagster.sdk import Claimed, Delivery

_FLOOR: Final = "floor"


class DeliveryClaim(msgspec.Struct, frozen=True):
    """The claim stored under a hash."""

    state: str
    """``delivered``, ``split`` or ``nacked``; ``pruned`` under the key of the floor."""
    step: int
    records: int = 0


class ClaimMessage(NamedTuple):
    """A message that stores or removes a claim."""

    name: str
    """The hash, or ``floor``."""
    claim: DeliveryClaim | None


class DeliveriesLog(NamedTuple):
    """Which topic of deliveries was read, and whether hashes were removed from it: stored as the target of a step."""

    id: str
    begins: int
    """Sum of the earliest offsets of its partitions: compaction moves none of them, retention and operators do."""

    def problem(self, before: Sequence[Any]) -> str:
        """Return in words what became of the topic since ``before``; empty if it has all hashes stored since then."""
        was = DeliveriesLog(*before)
        if is_recreated(was.id, self.id):
            return "was deleted, and is another one now"
        return "lost messages, by retention or by hand" if self.begins != was.begins else ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(DeliveryClaim).decode


class DeliveryClaims:
    """Claims of one destination. Exact until another producer takes over its transactional id; then they must be read
    again."""

    def __init__(self, owner: str, errors: KafkaErrors) -> None:
        self._owner, self._errors = owner, errors
        self._known: dict[str, DeliveryClaim] = {}

    def state(self, delivery: Delivery) -> Claimed | None:
        """Return the state stored under the delivery's hash, or None."""
        claim = self._known.get(delivery.hash)
        return None if claim is None else cast(Claimed, claim.state)

    def require_known(self, delivery: Delivery) -> None:
        """Raise ``FatalError`` for a delivery so old that its hash may have been removed."""
        floor = self._floor()
        if delivery.step >= floor:
            return
        message = f"step {delivery.step} is older than what the topic of deliveries still knows (step {floor})"
        fix = (
            "a run this old must not go on; where the state store was started anew on purpose, give the destination"
            " another id: the step ends without the old one (docs/recovery.md, A step that can't be rebuilt)"
        )
        raise self._errors.fatal(message, "kafka.step_pruned", fix)

    def _floor(self) -> int:
        found = self._known.get(_FLOOR)
        return 0 if found is None else found.step

    def putting(self, delivery: Delivery, state: Claimed) -> list[ClaimMessage]:
        """Return the message that stores a claim."""
        return [ClaimMessage(delivery.hash, DeliveryClaim(state, delivery.step, delivery.records))]

    def pruning(self, delivery: Delivery) -> list[ClaimMessage]:
        """Return, with one delivery in a hundred, messages that remove the claims of steps before :func:`new_floor`."""
        floor = new_floor(delivery)
        if floor is None:
            return []
        old = [name for name, one in self._known.items() if name != _FLOOR and one.step < floor]
        return [ClaimMessage(_FLOOR, DeliveryClaim("pruned", floor)), *(ClaimMessage(name, None) for name in old)]

    def committed(self, messages: Sequence[ClaimMessage]) -> None:
        """Apply committed messages."""
        for name, claim in messages:
            if claim is None:
                self._known.pop(name, None)
            elif name != _FLOOR or claim.step >= self._floor():
                # an older floor may be read later: it stays in its partition when partitions are added
                self._known[name] = claim

    def encoded(self, messages: Sequence[ClaimMessage]) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the encoded key and value of each message."""
        for name, claim in messages:
            yield self._key(name), None if claim is None else _encode(claim)

    def _key(self, name: str) -> bytes:
        return f"{self._owner}/{name}".encode()

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Apply a message read from the topic; messages of other destinations are skipped."""
        prefix = self._key("")
        if key is not None and key.startswith(prefix):
            name = key.removeprefix(prefix).decode()
            if "/" in name:
                return  # belongs to an owner whose name starts with ours
            self.committed([ClaimMessage(name, None if value is None else _decode(value))])


class _ClaimReader:
    """Reader of the topic of deliveries, from beginning to end."""

    def __init__(self, settings: KafkaDestinationSettings, errors: KafkaErrors, cluster: Cluster) -> None:
        self._settings, self._errors, self._cluster = settings, errors, cluster
        self._topic = settings.deliveries_topic

    def read(self, claims: DeliveryClaims) -> DeliveriesLog:
        """Read all committed claims; call it after ``init_transactions`` has ended the open transactions of older
        owners.

        Reads up to the end for ``read_uncommitted``: the last stable offset may precede one of our own hashes while a
        transaction of another pipeline is open, and a missed hash would be written twice.
        """
        found = self._cluster.whole(self._topic)
        consumer = make_client(Consumer, self._config(), self._errors)
        try:
            for partition, (begin, end) in enumerate(found.ends):
                if end > begin:
                    consumer.assign([TopicPartition(self._topic, partition, begin)])
                    self._read(consumer, end, claims)
        finally:
            consumer.close()
        return DeliveriesLog(found.id, sum(begin for begin, _ in found.ends))

    def _config(self) -> dict[str, Any]:
        return client_config(self._settings, self._errors) | {
            "group.id": "conduit",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
        }

    def _read(self, consumer: Consumer, end: int, claims: DeliveryClaims) -> None:
        at, heard = 0, time.monotonic()
        while at < end:
            for message in consumer.consume(1_000, 0) or consumer.consume(1, 1.0):
                error = message.error()
                if error is None:
                    claims.take(message.key(), message.value())
                    at, heard = (message.offset() or 0) + 1, time.monotonic()
                elif error.code() == KafkaError._PARTITION_EOF:
                    at = max(at, message.offset() or 0)
                elif error.code() not in PASSING:
                    raise self._errors.verdict(error, f"{self._topic} can't be read", self._topic)
            if at < end and time.monotonic() - heard > self._settings.timeout:
                raise self._stuck(consumer.assignment()[0].partition, at, end)

    def _stuck(self, partition: int, at: int, end: int) -> Exception:
        """Return why no more messages come: an open transaction, or a broker that does not answer."""
        if self._cluster.stable_end(self._topic, partition) >= end:
            silent = KafkaError(KafkaError._TIMED_OUT)
            return self._errors.verdict(silent, f"{self._topic} can be read to {at} of {end}", self._topic)
        message = f"{self._topic} can be read to {at} of {end}: a transaction of another pipeline is open, or one hangs"
        fix = "wait for that one; if its run died, start it again or wait for its transaction-timeout. Brokers that "
        fix += "lost their __transaction_state never end it: " + self._errors.hanging(self._topic)
        return self._errors.outage(message, "kafka.open_transaction", fix)


class DeliverySession:
    """Transactional producer, with the claims read since it took over the transactional id.

    The last caller of ``init_transactions`` owns the id: brokers fence every older owner and abort its open
    transaction, or complete it if its commit was decided. Only then is the topic of deliveries read to its end. So the
    claims include every transaction of this id that was or will be committed, except our own.
    """

    def __init__(self, owner: str, settings: KafkaDestinationSettings, errors: KafkaErrors, cluster: Cluster) -> None:
        self._owner, self._settings, self._errors = owner, settings, errors
        self._cluster, self._reader = cluster, _ClaimReader(settings, errors, cluster)
        self._lock = threading.RLock()
        self._producer: Producer | None = None
        self.failures = SendFailures()
        self.claims = DeliveryClaims(owner, errors)
        self.log = DeliveriesLog(NO_ID, 0)
        """The topic that the claims were read from; known once the session was opened."""

    @contextmanager
    def opened(self) -> Generator[Producer]:
        """Yield the producer for exclusive use. Fences older owners at first use and after an error."""
        with self._lock:
            yield self._producer or self._open()

    def fence(self) -> None:
        """Fence older owners: end their open transactions, and read the claims that they have committed."""
        with self._lock:
            self.close()
            self._open()

    def _open(self) -> Producer:
        self.failures = SendFailures()
        producer = make_client(Producer, self._config(), self._errors)
        self.claims = DeliveryClaims(self._owner, self._errors)
        try:
            producer.init_transactions(self._settings.timeout)
            self.log = self._reader.read(self.claims)
        except KafkaException as error:
            with suppress(KafkaException), fatal_errors():
                producer.poll(0)  # raises a fatal error once more, after error_cb was called
            raise self._unopened(error, f"transactions of {self._owner} can't begin") from None
        self._producer = producer
        return producer

    def _unopened(self, error: Any, what: str) -> Exception:
        found = self._errors.verdict(error, what)
        is_silent = found.code == "kafka.unreachable"
        return self._errors.no_coordinator(what) if is_silent and self._cluster.answers() else found

    def _config(self) -> dict[str, Any]:
        return producer_config(self._settings, self._errors, self.failures) | {
            "transactional.id": self._owner,
            "transaction.timeout.ms": round(self._settings.transaction_timeout * 1_000),
        }

    def close(self) -> None:
        """Drop the producer; an open transaction is not committed."""
        with self._lock:
            producer, self._producer = self._producer, None
            if producer is not None:
                purge(producer)

    # -- transactions -------------------------------------------------------------------------------------------

    def commit(self, send: Callable[[Producer], bool], claims: Sequence[ClaimMessage]) -> None:
        """Run ``send``, write the claims and commit both in one transaction. Nothing of it is visible before the
        commit.

        Raises ``SendError`` if a message could not be written; ``send`` returns False at the first failure. If the
        outcome of the commit is unknown, the producer is dropped, and the next one learns the outcome from the brokers.
        """
        with self.opened() as producer:
            self.failures.clear()
            begun = time.monotonic()
            try:
                with fatal_errors():
                    producer.begin_transaction()
                    # hashes are written last, because readers of their topic wait for open transactions
                    whole = send(producer) and self._write(producer, claims)
                    if whole:
                        self._commit(producer)
            except KafkaException as error:
                self._end(producer)
                self._require_in_time(begun, error)
                if self.failures.first is not None:
                    raise SendError(*self.failures.first, self._is_late(begun)) from None
                if kafka_error(error).code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, *NO_TOPIC):
                    # brokers refuse all partitions of a transaction at once, and name none
                    raise SendError(kafka_error(error), "") from None
                raise self._errors.verdict(error, "the delivery can't be committed") from None
            except BaseException:
                self._end(producer)
                raise
            if not whole:
                self._end(producer)
                self._require_in_time(begun, self.failures.first and self.failures.first[0])
                raise SendError(*(self.failures.first or (KafkaError(KafkaError._FAIL), "")), self._is_late(begun))
            # only now is the commit certain
            self.claims.committed(claims)

    def _require_in_time(self, begun: float, error: Any) -> None:
        """Raise ``TransientError`` if brokers ended the transaction: they refuse the rest as from a fenced owner."""
        if error is not None and self._is_late(begun) and kafka_error(error).code() in FENCED:
            raise self._errors.overdue("the delivery can't be committed", self._settings.transaction_timeout)

    def _is_late(self, begun: float) -> bool:
        return time.monotonic() - begun > self._settings.transaction_timeout

    def _write(self, producer: Producer, claims: Sequence[ClaimMessage]) -> bool:
        for key, value in self.claims.encoded(claims):
            producer.produce(self._settings.deliveries_topic, value, key)
        return True

    def _commit(self, producer: Producer) -> None:
        deadline = time.monotonic() + self._settings.message_timeout + self._settings.timeout
        while True:
            try:
                producer.commit_transaction(self._settings.timeout)
                return
            except KafkaException as error:
                # repeating the call continues a commit whose response was lost
                if not kafka_error(error).retriable() or time.monotonic() > deadline:
                    raise

    def _end(self, producer: Producer) -> None:
        """Abort the transaction and drop the producer, which may have lost track of a partition's sequence numbers.

        If the abort fails, ``init_transactions`` of the next producer aborts it.
        """
        try:
            with suppress(KafkaException), fatal_errors():
                producer.abort_transaction(self._settings.timeout)
            # raises the fatal error of an abort that was refused: its transaction is over in any case
            with suppress(KafkaException), fatal_errors():
                producer.poll(0)
        finally:
            self.close()
