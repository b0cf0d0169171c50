"""Clients of a cluster (librdkafka): their configuration, and what their errors mean.

An error's code decides, never its text. Messages contain no secrets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException

from conduit_dagster.config.scalars import comma_separated
from conduit_dagster.connectors.kafka.settings import KafkaSettings
from conduit_dagster.connectors.kafka.tls_diagnosis import tls_problem
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.sdk import ConnectorContext
from conduit_dagster.secret_values import remember

C = TypeVar("C")


def make_client(kind: Callable[[dict[str, Any]], C], config: dict[str, Any], errors: KafkaErrors) -> C:
    """Create a client. Raises ``FatalError`` if the library rejects the settings."""
    try:
        return kind(config)
    except KafkaException as error:
        raise errors.unfit(error) from None


def client_config(settings: KafkaSettings, errors: KafkaErrors) -> dict[str, Any]:
    """Return the configuration shared by all clients of a connector."""
    remember(secret for secret in (settings.sasl_password, settings.client_key) if secret)
    config: dict[str, Any] = {
        "bootstrap.servers": ",".join(comma_separated(settings.servers)),
        "client.id": settings.client_id,
        "error_cb": errors,
        # errors are reported through error_cb; the library's own stderr lines would come from every task
        "log_level": 2,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,
        "socket.keepalive.enable": True,
        "security.protocol": _protocol(settings),
    }
    if settings.sasl_mechanism:
        config["sasl.mechanism"] = settings.sasl_mechanism
        config |= {"sasl.username": settings.sasl_username, "sasl.password": settings.sasl_password}
    return config | (_tls(settings) if settings.tls_enabled else {})


def _protocol(settings: KafkaSettings) -> str:
    if settings.sasl_mechanism:
        return "sasl_ssl" if settings.tls_enabled else "sasl_plaintext"
    return "ssl" if settings.tls_enabled else "plaintext"


def _tls(settings: KafkaSettings) -> dict[str, Any]:
    given = {
        "ssl.ca.pem": settings.ca_cert,
        "ssl.certificate.pem": settings.client_cert,
        "ssl.key.pem": settings.client_key,
    }
    verify = not settings.insecure_skip_verify
    checks = {"enable.ssl.certificate.verification": verify}
    if not verify:
        checks |= {"ssl.endpoint.identification.algorithm": "none"}
    return {key: value for key, value in given.items() if value} | checks


_LOGIN: Final = (
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
)
_SECURITY: Final = (*_LOGIN, KafkaError._SSL)
_LINE: Final = (KafkaError._TRANSPORT, KafkaError._RESOLVE)
_RIGHTS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "--topic {topic} {operations}",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "--group {group} --operation Read",
    # brokers refuse an idempotent producer that may write to no topic at all
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "--topic {topic} {operations}; for brokers older than 2.8 also "
    "--cluster --operation IdempotentWrite",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "--transactional-id {transactional_id} "
    "--operation Write --operation Describe",
}
_OWN_IDS: Final = "conduit-"
"""Prefix of the groups and transactional ids that no setting names."""
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
LOST: Final = KafkaError._FATAL
"""Stands for a client's fatal error that Python has lost."""
FENCED: Final = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
SILENT: Final = (
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
    KafkaError.MSG_SIZE_TOO_LARGE: "raise the topic's max.message.bytes: with 1 KB it takes a delivery's hash",
    KafkaError.POLICY_VIOLATION: "create the topic by hand, as the cluster's policy wants it",
    KafkaError.INVALID_REPLICATION_FACTOR: "create the topic by hand, with a replication factor that the cluster has",
    KafkaError.UNSUPPORTED_VERSION: "the brokers are too old: Kafka 2.5 or newer is needed",
}

_CLOCK: Final = (
    "set the clock of this machine and those of the brokers: their message.timestamp.after.max.ms (1 h since Kafka 4) "
    "and message.timestamp.before.max.ms say how far apart they may be; nothing was lost"
)
_FORGOTTEN: Final = (
    "the transactional id was idle for longer than the brokers' transactional.id.expiration.ms, or another run has "
    "taken it over since: the next attempt has it again; nothing was lost"
)
_TLS: Final = (
    "correct caCert, clientCert and clientKey: PEM text each, and the key, without a password, is the certificate's"
)
_UNREACHABLE: Final = "start the brokers, or correct servers, tls.enabled and saslMechanism; nothing was lost"


def kafka_error(error: Any) -> KafkaError:
    """Return the ``KafkaError`` of a client exception."""
    found = error.args[0] if isinstance(error, KafkaException) and error.args else error
    return found if isinstance(found, KafkaError) else KafkaError(KafkaError._FAIL, str(found))


@contextmanager
def fatal_errors() -> Generator[None]:
    """Raise a client's fatal error as the ``KafkaException`` that it is.

    The client library raises it, then goes on to report messages in the same call, where Python replaces it. Where it
    loses it as well, ``LOST`` is raised.
    """
    try:
        yield
    except SystemError as error:
        cause = error.__cause__
        while cause is not None and not isinstance(cause, KafkaException):
            cause = cause.__cause__
        raise cause or KafkaException(KafkaError(LOST)) from None


def own_id(given: str, context: ConnectorContext) -> str:
    """Return a connector's consumer group or transactional id: as a setting names it, otherwise its own."""
    return given or f"{_OWN_IDS}{context.pipeline}/{context.connector}"


class AccessRights(NamedTuple):
    """What the user of a connector has to be granted."""

    operations: tuple[str, ...]
    """Operations on the topics of its records."""
    group: str = ""
    transactional_id: str = ""
    others: Mapping[str, tuple[str, ...]] = {}
    """Operations on topics of its own, by topic."""

    def grant(self, code: int, topic: str) -> str:
        """Return the words for ``kafka-acls.sh`` that grant what an error says is missing."""
        operations = " ".join(f"--operation {one}" for one in self.others.get(topic, self.operations))
        own = f"'{_OWN_IDS}' --resource-pattern-type prefixed"
        named = {
            key: own if name.startswith(_OWN_IDS) else name
            for key, name in (("group", self.group), ("transactional_id", self.transactional_id))
        }
        return _RIGHTS[code].format(topic=topic or "TOPIC", operations=operations, **named)


class KafkaErrors:
    """Translation of one connector's errors. As ``error_cb`` of a client it also records why brokers don't respond."""

    def __init__(self, settings: KafkaSettings, rights: AccessRights) -> None:
        self._settings, self._place = settings, settings.place
        self.rights = rights
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
        if found.code() in SILENT:
            found = self._recent(self._security) or found
        code, text = found.code(), f"{what}: {found.str()}"
        if code in _LOGIN:
            return self.fatal(text, "kafka.login", "correct saslMechanism, saslUsername and saslPassword")
        if code in _RIGHTS:
            user, words = self._settings.sasl_username or "NAME", self.rights.grant(code, topic)
            fix = f"kafka-acls.sh --bootstrap-server {self._place} --add --allow-principal User:{user} {words}"
            return self.fatal(text, "kafka.no_right", fix, topic)
        if code in NO_TOPIC:
            return self.no_topic(topic)
        if code == KafkaError.TOPIC_EXCEPTION:
            return self.fatal(text, "kafka.topic_name", "name another topic", topic)
        if code in FENCED:
            fix = "another run has taken over: let one of them run; nothing was written twice"
            return self.outage(text, "kafka.fenced", fix)
        if code == KafkaError.INVALID_PRODUCER_ID_MAPPING:
            return self.outage(text, "kafka.server", _FORGOTTEN)
        if code == KafkaError.INVALID_TIMESTAMP:
            return self.outage(f"{text}: {topic}" if topic else text, "kafka.clock", _CLOCK)
        if code in _REFUSED:
            return self.fatal(text, "kafka.refused", _REFUSED[code], topic)
        if code == KafkaError._SSL:
            return self._tls(what) or self.fatal(text, "kafka.tls", _TLS)
        if code in SILENT:
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

    def has_lost_line(self, seconds: float) -> bool:
        """Return whether a connection has failed in the last seconds."""
        times = [noted[0] for noted in (self._line, self._security) if noted is not None]
        return any(time.monotonic() - one <= seconds for one in times)

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

    def too_slow(self, what: str, limit: float) -> ConduitError:
        """Return the error for brokers that answer, but take messages too slowly."""
        text = f"{what}: the brokers answer, but have not taken all messages within {limit:g}s"
        fix = "raise deliveryTimeout and transaction-timeout, of which the shorter one counts; for later steps lower "
        fix += "delivery.batch-bytes; and look whether the brokers are busy, or a quota (producer_byte_rate) slows them"
        return self.outage(text, "kafka.delivery_timeout", fix)

    def topic_deleted(self, topic: str) -> ConduitError:
        """Return the error for a topic that was deleted after it was found, and that may be created."""
        fix = "the next attempt creates it; with create-topics: never it is yours to create"
        return self.outage(f"the topic {topic} was deleted while it was written to", "kafka.topic_deleted", fix)

    def topic_remade(self, topic: str) -> ConduitError:
        """Return the error for a topic that was deleted and created again; it is not known which one without a name."""
        which = f"the topic {topic}" if topic else "a topic"
        message = f"{which} was deleted and created again while it was written to"
        return self.outage(message, "kafka.topic_remade", "the next attempt writes to the new one")

    def deliveries_deleted(self, topic: str) -> ConduitError:
        """Return the error for a topic of deliveries that was deleted during a run."""
        message = f"the topic {topic} was deleted, and with it the hashes of what was delivered"
        fix = "run again, which creates it, and stops if a step could have been written that is not recorded yet"
        return self.fatal(message, "kafka.no_topic", fix, topic)

    def deliveries_gone(self, topic: str, what: str, step: int) -> ConduitError:
        """Return the error for a prepared step whose hash may have been lost with the topic of deliveries."""
        message = f"the topic {topic} {what} since step {step} was prepared: nothing says whether the step was written"
        fix = "look for its records at the destination: if they are missing, set on-deliveries-gone: resend and run "
        fix += "again; if they are there, then first conduit-dagster offsets mark PIPELINE CONNECTOR OFFSET"
        return self.fatal(message, "kafka.deliveries_gone", fix, topic)

    def hanging(self, topic: str) -> str:
        """Return the commands that find and end transactions which no broker ends."""
        tool = f"kafka-transactions.sh --bootstrap-server {self._place}"
        end = f"{tool} abort --topic {topic} --partition N --start-offset OFFSET"
        return f"{tool} find-hanging --topic {topic}, and {end}"

    def no_coordinator(self, what: str) -> ConduitError:
        """Return the error for a timeout of transactions whose brokers answer otherwise."""
        settings = "transaction.state.log.replication.factor and transaction.state.log.min.isr"
        fix = f"look at the brokers' log; with fewer than three brokers, lower their {settings}"
        message = f"{what}: the brokers answer, but none coordinates transactions"
        return self.outage(message, "kafka.no_coordinator", fix)

    def out_of_sync(self, what: str, which: str) -> ConduitError:
        """Return the error for messages that brokers do not take, since too few replicas are in sync."""
        fix = "start the brokers that are down: a topic takes messages while min.insync.replicas are in sync"
        return self.outage(f"{what}: {which}", "kafka.out_of_sync", f"{fix}; nothing was lost")

    def behind(self, where: str, high: int, offset: int) -> ConduitError:
        """Return the error for a partition that ends before an offset that was there."""
        fix = "wait for the broker that has them; else conduit-dagster positions rewind PIPELINE CONNECTOR --to-start"
        message = f"{where} ends at {high}, and {offset} comes next: brokers have lost messages"
        return self.outage(message, "kafka.behind", fix)

    def truncated(self, where: str, offset: int, found: str, topic: str) -> ConduitError:
        """Return the error for a partition whose messages before an offset are not the ones that were read."""
        message = f"{where}: brokers have lost messages before offset {offset}, which were read, and others have their "
        message += f"offsets: {found}"
        fix = "read the others: conduit-dagster positions rewind PIPELINE CONNECTOR --to JSON, which is what positions "
        fix += "show has, with the broker's end offset as the next one, or --to-start; or accept their loss: set "
        return self.fatal(message, "kafka.truncated", fix + "on-gone: skip", topic)

    def no_topic(self, topic: str) -> ConduitError:
        """Return the error for a missing topic."""
        fix = f"kafka-topics.sh --bootstrap-server {self._place} --create --topic {topic or 'TOPIC'}"
        fix += " --config cleanup.policy=compact" if topic in self.rights.others else ""
        return self.fatal(f"there is no topic {topic}", "kafka.no_topic", fix, topic)

    def outage(self, message: str, code: str, fix: str) -> ConduitError:
        """Return a transient error."""
        return TransientError(message, code=code, place=self._place, fix=fix)

    def fatal(self, message: str, code: str, fix: str, topic: str = "") -> ConduitError:
        """Return a fatal error."""
        return FatalError(message, code=code, place=f"{self._place} {topic}".strip(), fix=fix)
