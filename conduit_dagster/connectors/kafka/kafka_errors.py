"""Classification of Kafka errors. The code decides, never the text. Messages contain no secrets."""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from conduit_dagster.connectors.kafka.settings import KafkaSettings
from conduit_dagster.connectors.kafka.tls_probe import tls_problem
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError

_LOGIN: Final = (
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
)
_SECURITY: Final = (*_LOGIN, KafkaError._SSL)
_LINE: Final = (KafkaError._TRANSPORT, KafkaError._RESOLVE)
_RIGHTS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "--topic {topic} --operation {operations}",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "--group '*' --operation Read",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "--cluster --operation IdempotentWrite --operation Create",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "--transactional-id 'conduit-' "
    "--resource-pattern-type prefixed --operation Write --operation Describe",
}
NO_TOPIC: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_ID)
PASSING: Final = (
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    # the client looks up its group's coordinator now and then, but reading assigned partitions needs no group
    KafkaError.GROUP_AUTHORIZATION_FAILED,
)
"""Errors that a consumer of assigned partitions ignores: temporary, or without effect on it."""
FENCED: Final = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_SILENT: Final = (
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
)
_REFUSED: Final = {
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "lower transaction-timeout, or raise the brokers' "
    "transaction.max.timeout.ms",
    KafkaError.POLICY_VIOLATION: "create the topic by hand, as the cluster's policy wants it",
    KafkaError.INVALID_REPLICATION_FACTOR: "create the topic by hand, with a replication factor that the cluster has",
    KafkaError.UNSUPPORTED_VERSION: "the brokers are too old: Kafka 2.5 or newer is needed",
}

_TLS: Final = "correct caCert, clientCert and clientKey: PEM text each, and the key is the certificate's"
_UNREACHABLE: Final = "start the brokers, or correct servers, tls.enabled and saslMechanism; nothing was lost"


def kafka_error(error: Any) -> KafkaError:
    """Return the ``KafkaError`` of a client exception."""
    found = error.args[0] if isinstance(error, KafkaException) and error.args else error
    return found if isinstance(found, KafkaError) else KafkaError(KafkaError._FAIL, str(found))


class KafkaErrors:
    """Translation of one connector's errors. As ``error_cb`` of a client it also records why brokers don't respond."""

    def __init__(self, settings: KafkaSettings, operations: str) -> None:
        self._settings, self._place = settings, settings.place
        self._operations = operations
        self._security: tuple[float, KafkaError] | None = None
        self._line: tuple[float, KafkaError] | None = None

    def __call__(self, error: KafkaError) -> None:
        """Record a failed login or connection, after which requests only time out."""
        if error.code() in _SECURITY:
            self._security = (time.monotonic(), error)
        elif error.code() in _LINE:
            self._line = (time.monotonic(), error)

    def verdict(self, error: Any, what: str, topic: str = "") -> ConduitError:
        """Return the error to raise for a client error; ``what`` describes the failed action."""
        found = kafka_error(error)
        if found.code() in _SILENT:
            found = self._recent(self._security) or found
        code, text = found.code(), f"{what}: {found.str()}"
        if code in _LOGIN:
            return self.fatal(text, "kafka.login", "correct saslMechanism, saslUsername and saslPassword")
        if code in _RIGHTS:
            words = _RIGHTS[code].format(topic=topic or "TOPIC", operations=self._operations)
            fix = f"kafka-acls.sh --bootstrap-server {self._place} --add --allow-principal User:NAME {words}"
            return self.fatal(text, "kafka.no_right", fix, topic)
        if code in NO_TOPIC:
            return self.no_topic(topic)
        if code in FENCED:
            fix = "another run has taken over: let one of them run; nothing was written twice"
            return self.outage(text, "kafka.fenced", fix)
        if code in _REFUSED:
            return self.fatal(text, "kafka.refused", _REFUSED[code], topic)
        if code == KafkaError._SSL:
            return self._tls(what) or self.fatal(text, "kafka.tls", _TLS)
        if code in _SILENT:
            return self._tls(what) or self.outage(self._silence(text), "kafka.unreachable", _UNREACHABLE)
        return self.outage(text, "kafka.server", "look at the brokers' log; nothing was lost")

    def _tls(self, what: str) -> ConduitError | None:
        """Return the error if TLS is the cause, which the client reports only in part or not at all."""
        problem = tls_problem(self._settings)
        if problem is None:
            return None
        make, code = (self.fatal, "kafka.tls") if problem.is_fatal else (self.outage, "kafka.unreachable")
        return make(f"{what}: {problem.message}", code, problem.fix)

    def _silence(self, text: str) -> str:
        """Return the text of a timeout, extended by a recent connection error."""
        error = self._recent(self._line)
        return text if error is None or error.str() in text else f"{text}; {error.str()}"

    def _recent(self, noted: tuple[float, KafkaError] | None) -> KafkaError | None:
        """Return an error recorded while the request waited; None for an older one, whose cause may be fixed by now."""
        since, error = noted or (0.0, None)
        return error if time.monotonic() - since <= self._settings.timeout + 5 else None

    def unfit(self, error: Any) -> ConduitError:
        """Return the error for settings that the client library rejects."""
        text = f"no client can be made: {kafka_error(error).str()}"
        fix = _TLS if self._settings.tls_enabled else "correct the settings that the message names"
        return self.fatal(text, "kafka.tls" if self._settings.tls_enabled else "kafka.refused", fix)

    def overdue(self, what: str, limit: float) -> ConduitError:
        """Return the error for a transaction that brokers have ended, because it was open for too long."""
        text = f"{what}: it took longer than transaction-timeout ({limit:g}s), and the brokers have undone it"
        more = "up to the brokers' transaction.max.timeout.ms; for later steps lower delivery.batch-size"
        fix = f"raise transaction-timeout, {more}"
        return self.outage(text, "kafka.transaction_timeout", fix)

    def topic_deleted(self, topic: str) -> ConduitError:
        """Return the error for a topic that was deleted after it was found, and that may be created."""
        fix = "the next attempt creates it; with create-topics: never it is yours to create"
        return self.outage(f"the topic {topic} was deleted while it was written to", "kafka.topic_deleted", fix)

    def no_topic(self, topic: str) -> ConduitError:
        """Return the error for a missing topic."""
        fix = f"kafka-topics.sh --bootstrap-server {self._place} --create --topic {topic or 'TOPIC'}"
        return self.fatal(f"there is no topic {topic}", "kafka.no_topic", fix, topic)

    def outage(self, message: str, code: str, fix: str) -> ConduitError:
        """Return a transient error."""
        return TransientError(message, code=code, place=self._place, fix=fix)

    def fatal(self, message: str, code: str, fix: str, topic: str = "") -> ConduitError:
        """Return a fatal error."""
        return FatalError(message, code=code, place=f"{self._place} {topic}".strip(), fix=fix)
