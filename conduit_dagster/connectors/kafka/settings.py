"""Settings of the ``kafka`` connector, named as Conduit's where Conduit has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal, LiteralString, cast

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from conduit_dagster.config.scalars import Duration, PositiveDuration, Regex
from conduit_dagster.connectors.formats import make_format
from conduit_dagster.expressions import ExpressionError, compile_template
from conduit_dagster.sdk import ConnectorSettings

TOPIC_BYTES: Final = 249
_TOPIC = re.compile(r"[A-Za-z0-9._\-]+")
_GROUP = "no consumer group is joined: positions are kept in the state store"
_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]+-----")
_PORT = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s:,/@]+)(:[0-9]{1,5})?")


def refused(kind: LiteralString, message: str, fix: str | None) -> PydanticCustomError:
    """Return the error of a setting."""
    return PydanticCustomError(kind, "{message}", {"message": message, "fix": fix})


def require_topic(name: str) -> str:
    """Return the name of a topic. Raises ``ValueError`` for one that Kafka does not allow."""
    if not name or name in (".", ".."):
        raise ValueError("the name of the topic is empty" if not name else f"{name!r} is not a topic's name")
    if len(name.encode()) > TOPIC_BYTES:
        raise ValueError(f"the topic {name[:40]}… is longer than {TOPIC_BYTES} bytes")
    if not _TOPIC.fullmatch(name):
        raise ValueError(f"{name!r} is not a topic's name: letters, digits and . _ - are allowed")
    return name


def listed(text: str) -> tuple[str, ...]:
    """Return the parts of a comma-separated list."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _servers(text: str) -> str:
    if not listed(text):
        raise refused("servers", "no server is named", "name one or more: host:9092,other:9092")
    if bad := [one for one in listed(text) if not _PORT.fullmatch(one)]:
        raise refused("servers", f"{bad[0]!r} is not a server", "write it as host:9092")
    return text


def _topics(text: str) -> str:
    try:
        for name in [one for one in listed(text) if not one.startswith("^")]:
            require_topic(name)
    except ValueError as error:
        raise refused("topics", str(error), "name topics, or write a pattern with a ^ before it: ^orders-.*") from None
    if not listed(text):
        raise refused("topics", "no topic is named", "name one or more: orders,customers")
    return text


def _start(text: str) -> str:
    if text not in ("", "earliest", "latest"):
        try:
            _moment(text)
        except ValueError:
            fix = "earliest, latest, or a time with its zone such as 2026-08-02T10:00:00Z"
            raise refused("start", f"{text!r} is not a place to start", fix) from None
    return text


def _moment(text: str) -> int:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("the time has no zone")
    return int(moment.timestamp() * 1_000)


def _template(text: str) -> str:
    try:
        template = compile_template(text)
        if template.literal is not None:
            require_topic(template.literal)
    except ExpressionError as error:
        raise refused("expression", error.message, error.fix) from None
    except ValueError as error:
        raise refused("topic", str(error), "name a topic, or a template that gives its name") from None
    return text


class KafkaSettings(ConnectorSettings):
    """Settings that source and destination share: servers, login and TLS."""

    model_config = ConfigDict(hide_input_in_errors=True)

    servers: Annotated[str, AfterValidator(_servers)]
    """Some brokers of the cluster, from which the others are found: ``host:9092,other:9092``."""
    client_id: str = Field("conduit-connector-kafka", alias="clientID")
    """The name under which the brokers know the connections, in their logs and quotas."""
    sasl_mechanism: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field("", alias="saslMechanism")
    """How to log in. Empty: there is no login."""
    sasl_username: str = Field("", alias="saslUsername")
    """The user for ``saslMechanism``."""
    sasl_password: str = Field("", alias="saslPassword", repr=False)
    """The user's password."""
    tls_enabled: bool = Field(False, alias="tls.enabled")
    """Whether connections use TLS."""
    ca_cert: str = Field("", alias="caCert")
    """The certificate authority of the brokers as PEM text. Empty: those of the machine."""
    client_cert: str = Field("", alias="clientCert")
    """The client's certificate as PEM text, where brokers ask for one."""
    client_key: str = Field("", alias="clientKey", repr=False)
    """The private key of ``clientCert`` as PEM text."""
    insecure_skip_verify: bool = Field(False, alias="insecureSkipVerify")
    """Accept any certificate of a broker: connections can then be intercepted."""
    timeout: PositiveDuration = 30.0
    """How long brokers may be silent before the run stops with a transient error."""

    @model_validator(mode="after")
    def _check_login(self) -> KafkaSettings:
        if bool(self.sasl_username) != bool(self.sasl_password):
            raise refused("sasl", "a login needs a user and a password", "set saslUsername and saslPassword")
        if self.sasl_mechanism and not self.sasl_username:
            raise refused("sasl", "saslMechanism needs a user", "set saslUsername and saslPassword")
        if bool(self.client_cert) != bool(self.client_key):
            raise refused("tls", "a client certificate needs its key", "set clientCert and clientKey")
        return self

    @model_validator(mode="after")
    def _check_texts(self) -> KafkaSettings:
        given = {"caCert": self.ca_cert, "clientCert": self.client_cert, "clientKey": self.client_key}
        for name, text in given.items():
            if text and not _PEM.search(text):
                raise refused("tls", f"{name} is not PEM text", f"give the text, not its place: ${{file:{name}.pem}}")
        return self

    @property
    def place(self) -> str:
        """The servers, for people."""
        return ",".join(listed(self.servers))


class KafkaSourceSettings(KafkaSettings):
    """Reads the messages of topics: the value is the payload, raw bytes, and the key is the key."""

    idle_keys: ClassVar[Mapping[str, str]] = {
        "retryGroupJoinErrors": _GROUP,
        "commitOffsetsSize": _GROUP,
        "commitOffsetsDelay": _GROUP,
    }

    topics: Annotated[str, AfterValidator(_topics)]
    """The topics, separated by commas. One that begins with ``^`` is a regular expression (RE2) for whole names:
    ``^orders-.*``; topics that match it later are read from their beginning."""
    read_from_beginning: bool = Field(False, alias="readFromBeginning")
    """Where to start at the first run: with the oldest message, or with what comes after that moment."""
    start_from: Annotated[str, AfterValidator(_start)] = Field("", alias="start-from")
    """In place of ``readFromBeginning``: ``earliest``, ``latest``, or a time such as ``2026-08-02T10:00:00Z``."""
    on_gone: Literal["fail", "skip"] = Field("fail", alias="on-gone")
    """What to do if messages that were not read yet are gone (retention, or a topic made anew): ``fail`` names them
    and stops; ``skip`` loses them and goes on with the oldest message that is there."""
    dense_offsets: bool = Field(False, alias="dense-offsets")
    """Say that the topics have no gaps between offsets: no transactions, no compaction. Then a step is read by several
    tasks. A gap stops the run before anything of the step is delivered."""
    offset_metadata: bool = Field(False, alias="offset-metadata")
    """Also give each record its offset as ``kafka.offset``. It is in the record's position anyway; records that share
    their metadata are faster."""
    commit_offsets: bool = Field(False, alias="commit-offsets")
    """Also commit the offsets of delivered messages to the group, for monitors of its lag. They are never read back."""
    group_id: str = Field("", alias="groupID")
    """The group for ``commit-offsets``. Empty: ``conduit-PIPELINE/CONNECTOR``."""

    @model_validator(mode="after")
    def _check_patterns(self) -> KafkaSourceSettings:
        for pattern in self.patterns:
            _Pattern.model_validate({"pattern": pattern})
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Topics by name."""
        return tuple(dict.fromkeys(one for one in listed(self.topics) if not one.startswith("^")))

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns of topics."""
        return tuple(one for one in listed(self.topics) if one.startswith("^"))

    @property
    def start(self) -> int | Literal["earliest", "latest"]:
        """Where to start: a time in milliseconds, or an end."""
        if self.start_from in ("earliest", "latest"):
            return self.start_from
        return _moment(self.start_from) if self.start_from else "earliest" if self.read_from_beginning else "latest"


class _Pattern(ConnectorSettings):
    pattern: Regex


class KafkaDestinationSettings(KafkaSettings):
    """Writes records as messages."""

    open_keys: ClassVar[tuple[str, ...]] = ("sdk.*",)

    topic: Annotated[str, AfterValidator(_template)] = '{{ index .Metadata "opencdc.collection" }}'
    """The topic, or a Go template that gives its name for a record."""
    format: str = Field("opencdc/json", alias="sdk.record.format")
    """What a message holds: ``opencdc/json`` (Conduit's record), ``payload/json`` (``.Payload.After``: raw data as it
    is, a document as JSON, none as a tombstone), ``debezium/json``, or ``template``."""
    format_options: str = Field("", alias="sdk.record.format.options")
    """The template, such as ``{{ toJson .Payload.After }}``, or the options of ``debezium/json``."""
    headers: Literal["kafka", "none"] = "kafka"
    """``kafka``: metadata ``kafka.header.NAME`` become headers; ``none``: messages have none."""
    timestamp: Literal["broker", "createdAt"] = "broker"
    """A message's time: when it is written, or the record's ``opencdc.createdAt`` where it has one."""
    create_topics: Literal["auto", "never"] = Field("auto", alias="create-topics")
    """``auto`` creates a topic that is missing with the cluster's default number of partitions and copies. ``never``:
    the run fails if the topic has one fixed name; if records name their topics, those of a missing one are nacked."""
    acks: Literal["all", "one", "none"] = "all"
    """Which brokers have to confirm a message. With less than ``all`` messages can be lost, and only at-most-once can
    be kept."""
    compression: Literal["snappy", "gzip", "lz4", "zstd", "none"] = "snappy"
    """How batches of messages are compressed."""
    batch_bytes: int = Field(1_000_012, alias="batchBytes", ge=1_000, le=1_000_000_000)
    """Maximum bytes of a request, and of a message with its key and headers before compression. A record that makes a
    larger one is nacked."""
    delivery_timeout: Duration = Field(0.0, alias="deliveryTimeout")
    """How long writing a message may take, repetitions included; 0s: two minutes."""
    linger: Duration = 0.005
    """How long a message waits for others to go with it."""
    transaction_timeout: PositiveDuration = Field(120.0, alias="transaction-timeout")
    """How long one delivery may take with exactly-once. A run that died holds up readers of ``read_committed`` for that
    long, unless it is started again before. The brokers' ``transaction.max.timeout.ms`` is its limit."""
    transactional_id: str = Field("", alias="transactional-id")
    """The name under which the brokers know this destination. Empty: ``conduit-PIPELINE/CONNECTOR``. No two projects
    that write to the same cluster may use the same one."""
    deliveries_topic: str = Field("conduit-deliveries", alias="deliveries-topic")
    """The compacted topic that holds the hashes of deliveries, for exactly-once. It is created if it is missing."""

    @model_validator(mode="after")
    def _check_format(self) -> KafkaDestinationSettings:
        make_format(self.format, self.format_options)
        try:
            require_topic(self.deliveries_topic)
        except ValueError as error:
            raise refused("topic", str(error), "correct deliveries-topic") from None
        if compile_template(self.topic).literal == self.deliveries_topic:
            raise refused("topic", "records can't go into deliveries-topic", "name another topic")
        return self

    @property
    def message_timeout(self) -> float:
        """Seconds that a message may take; within a transaction never more than that has."""
        return min(self.delivery_timeout or 120.0, self.transaction_timeout)


def as_source(settings: Any) -> KafkaSourceSettings:
    """Return the settings as the source's own model."""
    return cast(KafkaSourceSettings, settings)


def as_destination(settings: Any) -> KafkaDestinationSettings:
    """Return the settings as the destination's own model."""
    return cast(KafkaDestinationSettings, settings)
