"""The driver's transactional producer: fences older owners, and commits messages and hash together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from conduit_dagster.connectors.kafka.cluster_topics import Cluster
from conduit_dagster.connectors.kafka.delivery_claims import ClaimMessage, ClaimReader, DeliveryClaims
from conduit_dagster.connectors.kafka.kafka_client import make_client
from conduit_dagster.connectors.kafka.kafka_errors import FENCED, KafkaErrors, kafka_error
from conduit_dagster.connectors.kafka.message_sender import SendError, SendFailures, producer_config, purge
from conduit_dagster.connectors.kafka.settings import KafkaDestinationSettings


class DeliverySession:
    """Transactional producer, with the claims read since it took over the transactional id.

    The last caller of ``init_transactions`` owns the id: brokers fence every older owner and abort its open
    transaction, or complete it if its commit was decided. Only then is the topic of deliveries read to its end. So the
    claims include every transaction of this id that was or will be committed, except our own.
    """

    def __init__(self, owner: str, settings: KafkaDestinationSettings, errors: KafkaErrors, cluster: Cluster) -> None:
        self._owner, self._settings, self._errors = owner, settings, errors
        self._reader = ClaimReader(settings, errors, cluster)
        self._lock = threading.RLock()
        self._producer: Producer | None = None
        self.failures = SendFailures()
        self.claims = DeliveryClaims(owner, errors)

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
            self._reader.read(self.claims)
        except KafkaException as error:
            producer.poll(0)
            raise self._errors.verdict(error, f"transactions of {self._owner} can't begin") from None
        self._producer = producer
        return producer

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
                producer.begin_transaction()
                # hashes are written last, because readers of their topic wait for open transactions
                whole = send(producer) and self._write(producer, claims)
                if whole:
                    self._commit(producer)
            except KafkaException as error:
                self._end(producer)
                self._require_in_time(begun, error)
                if self.failures.first is not None:
                    raise SendError(*self.failures.first) from None
                raise self._errors.verdict(error, "the delivery can't be committed") from None
            except BaseException:
                self._end(producer)
                raise
            if not whole:
                self._end(producer)
                self._require_in_time(begun, self.failures.first and self.failures.first[0])
                raise SendError(*(self.failures.first or (KafkaError(KafkaError._FAIL), "")))
            # only now is the commit certain
            self.claims.committed(claims)

    def _require_in_time(self, begun: float, error: Any) -> None:
        """Raise ``TransientError`` if brokers ended the transaction: they refuse the rest as from a fenced owner."""
        limit = self._settings.transaction_timeout
        if error is not None and time.monotonic() - begun > limit and kafka_error(error).code() in FENCED:
            raise self._errors.overdue("the delivery can't be committed", limit)

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
            with suppress(KafkaException):
                producer.abort_transaction(self._settings.timeout)
            # raises the fatal error of an abort that was refused: its transaction is over in any case
            with suppress(KafkaException):
                producer.poll(0)
        finally:
            self.close()
