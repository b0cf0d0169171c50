"""Settings of the ``kafka`` connector, with Conduit's names where Conduit has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from conduit_dagster.config.findings import refuse
from conduit_dagster.config.scalars import (
    Duration,
    PositiveDuration,
    PositiveServerDuration,
    comma_separated,
    compile_regex,
)
from conduit_dagster.connectors.formats import make_format
from conduit_dagster.expressions import ExpressionError, compile_template
from conduit_dagster.sdk import ConnectorSettings

TOPIC_BYTES: Final = 249
_LONGEST_TIMEOUT: Final = 3_600
_LONGEST_LINGER: Final = 900
"""The client's own limits, in seconds."""
_TOPIC = re.compile(r"[A-Za-z0-9._\-]+")
_GROUP = "no consumer group is joined: positions are kept in the state store"
_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]+-----")
_PORT = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s:,/@]+)(:[0-9]{1,5})?")


def require_topic(name: str) -> str:
    """Validate the name of a topic. Raises ``ValueError`` for a name that Kafka does not allow."""
    if not name or name in (".", ".."):
        raise ValueError("the name of the topic is empty" if not name else f"{name!r} is not a topic's name")
    if len(name.encode()) > TOPIC_BYTES:
        raise ValueError(f"the topic {name[:40]}… is longer than {TOPIC_BYTES} bytes")
    if not _TOPIC.fullmatch(name):
        raise ValueError(f"{name!r} is not a topic's name: letters, digits and . _ - are allowed")
    return name


def _servers(text: str) -> str:
    if not comma_separated(text):
        raise refuse("no server is named", fix="name one or more: host:9092,other:9092")
    if bad := [one for one in comma_separated(text) if not _PORT.fullmatch(one)]:
        raise refuse(f"{bad[0]!r} is not a server", fix="write it as host:9092")
    return text


def _topics(text: str) -> str:
    try:
        for name in [one for one in comma_separated(text) if not one.startswith("^")]:
            require_topic(name)
    except ValueError as error:
        raise refuse(str(error), fix="name topics, or write a pattern with a ^ before it: ^orders-.*") from None
    if not comma_separated(text):
        raise refuse("no topic is named", fix="name one or more: orders,customers")
    return text


def _start(text: str) -> str:
    if text not in ("", "earliest", "latest"):
        try:
            _moment(text)
        except ValueError:
            fix = "earliest, latest, or a time with its zone such as 2026-08-02T10:00:00Z"
            raise refuse(f"{text!r} is not a place to start", fix=fix) from None
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
        raise refuse(error.message, code="expression", fix=error.fix) from None
    except ValueError as error:
        raise refuse(str(error), fix="name a topic, or a template that gives its name") from None
    return text


class KafkaSettings(ConnectorSettings):
    """Connection settings that source and destination share: servers, login and TLS."""

    model_config = ConfigDict(hide_input_in_errors=True)

    servers: Annotated[str, AfterValidator(_servers)]
    """Bootstrap servers, from which the other brokers are discovered: ``host:9092,other:9092``."""
    client_id: str = Field("conduit-connector-kafka", alias="clientID")
    """The client id, for the logs and quotas of the brokers."""
    sasl_mechanism: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field("", alias="saslMechanism")
    """The SASL mechanism. Empty: no authentication."""
    sasl_username: str = Field("", alias="saslUsername")
    """The user for ``saslMechanism``."""
    sasl_password: str = Field("", alias="saslPassword", repr=False)
    """The user's password."""
    tls_enabled: bool = Field(False, alias="tls.enabled")
    """Whether connections use TLS."""
    ca_cert: str = Field("", alias="caCert")
    """The certificate authority of the brokers as PEM text. Empty: the authorities of the operating system."""
    client_cert: str = Field("", alias="clientCert")
    """The client's certificate as PEM text, if the brokers require one."""
    client_key: str = Field("", alias="clientKey", repr=False)
    """The private key of ``clientCert`` as PEM text."""
    insecure_skip_verify: bool = Field(False, alias="insecureSkipVerify")
    """Accept any certificate of a broker. Connections can then be intercepted."""
    timeout: PositiveDuration = 30.0
    """How long to wait for a response of the brokers before the run stops with a transient error; at most an hour."""

    @model_validator(mode="after")
    def _check_connection(self) -> KafkaSettings:
        if self.timeout > _LONGEST_TIMEOUT:
            raise refuse("timeout is longer than an hour", fix="lower it", at="timeout")
        if bool(self.sasl_username) != bool(self.sasl_password):
            raise refuse("a login needs a user and a password", fix="set saslUsername and saslPassword")
        if self.sasl_mechanism and not self.sasl_username:
            raise refuse("saslMechanism needs a user", fix="set saslUsername and saslPassword")
        if bool(self.client_cert) != bool(self.client_key):
            raise refuse("a client certificate needs its key", fix="set clientCert and clientKey")
        given = {"caCert": self.ca_cert, "clientCert": self.client_cert, "clientKey": self.client_key}
        for name, text in given.items():
            if text and not _PEM.search(text):
                raise refuse(f"{name} is not PEM text", fix=f"give the text, not its place: ${{file:{name}.pem}}")
        return self

    @property
    def place(self) -> str:
        """The servers, for messages."""
        return ",".join(comma_separated(self.servers))


class KafkaSourceSettings(KafkaSettings):
    """Reads messages of topics: the value becomes the payload and the key the key, both as raw bytes."""

    idle_keys: ClassVar[Mapping[str, str]] = {
        "retryGroupJoinErrors": _GROUP,
        "commitOffsetsSize": _GROUP,
        "commitOffsetsDelay": _GROUP,
    }

    topics: Annotated[str, AfterValidator(_topics)]
    """The topics, separated by commas. A name that begins with ``^`` is a regular expression (RE2) for whole names:
    ``^orders-.*``; topics that match it later are read from their beginning."""
    read_from_beginning: bool = Field(False, alias="readFromBeginning")
    """Where the first run starts: at the oldest message if true, else after the latest one."""
    start_from: Annotated[str, AfterValidator(_start)] = Field("", alias="start-from")
    """In place of ``readFromBeginning``: ``earliest``, ``latest``, or a time such as ``2026-08-02T10:00:00Z``."""
    on_gone: Literal["fail", "skip"] = Field("fail", alias="on-gone")
    """What to do if unread messages are gone (retention, or a recreated topic). ``fail``: the pipeline stops with an
    error that names them; ``skip``: they are lost, and reading continues with the oldest message."""
    dense_offsets: bool | None = Field(None, alias="dense-offsets")
    """Whether the topics have no gaps between offsets: no transactions, no compaction. Several tasks can then read a
    step. By default the source finds out: where a task meets a gap, one task reads the step again, and all further ones
    of the run. With true, a gap stops the run after the messages before it; with false, one task reads."""
    offset_metadata: bool = Field(False, alias="offset-metadata")
    """Also store the offset of each record as metadata ``kafka.offset``. The record's position contains it anyway;
    without it, records can share their metadata, which is faster."""
    commit_offsets: bool = Field(False, alias="commit-offsets")
    """Also commit the offsets of delivered messages to the group, for lag monitoring. They are never read back."""
    group_id: str = Field("", alias="groupID")
    """The group for ``commit-offsets``. Empty: ``conduit-PIPELINE/CONNECTOR``."""

    @model_validator(mode="after")
    def _check_patterns(self) -> KafkaSourceSettings:
        for pattern in self.patterns:
            compile_regex(pattern)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Topics listed by name."""
        return tuple(dict.fromkeys(one for one in comma_separated(self.topics) if not one.startswith("^")))

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns in ``topics``."""
        return tuple(one for one in comma_separated(self.topics) if one.startswith("^"))

    @property
    def start(self) -> int | Literal["earliest", "latest"]:
        """Where to start: a timestamp in milliseconds, ``earliest`` or ``latest``."""
        if self.start_from in ("earliest", "latest"):
            return self.start_from
        return _moment(self.start_from) if self.start_from else "earliest" if self.read_from_beginning else "latest"


class KafkaDestinationSettings(KafkaSettings):
    """Writes records as messages."""

    topic: Annotated[str, AfterValidator(_template)] = '{{ index .Metadata "opencdc.collection" }}'
    """The topic, or a Go template that returns its name for each record."""
    format: str = Field("opencdc/json", alias="sdk.record.format")
    """The format of messages: ``opencdc/json`` (Conduit's record), ``payload/json`` (``.Payload.After``: raw data as
    is, a document as JSON, no payload as a tombstone), ``debezium/json``, or ``template``."""
    format_options: str = Field("", alias="sdk.record.format.options")
    """The template, such as ``{{ toJson .Payload.After }}``, or the options of ``debezium/json``."""
    headers: Literal["kafka", "none"] = "kafka"
    """``kafka``: metadata ``kafka.header.NAME`` becomes headers; ``none``: messages have no headers."""
    timestamp: Literal["broker", "createdAt"] = "broker"
    """The timestamp of a message: the time of writing, or the record's ``opencdc.createdAt`` if it has one."""
    create_topics: Literal["auto", "never"] = Field("auto", alias="create-topics")
    """``auto`` creates a missing topic with the cluster's default partitions and replicas. ``never``: the run fails if
    the topic is fixed; if records choose their topics, those of a missing topic are nacked."""
    acks: Literal["all", "one", "none"] = "all"
    """Which brokers must acknowledge a message. With less than ``all`` messages can be lost, and only at-most-once is
    possible."""
    compression: Literal["snappy", "gzip", "lz4", "zstd", "none"] = "snappy"
    """Compression of message batches."""
    batch_bytes: int = Field(1_000_012, alias="batchBytes", ge=1_000, le=1_000_000_000)
    """Maximum bytes of a request, and of a message with its key and headers before compression. A record whose message
    is larger is nacked."""
    delivery_timeout: Duration = Field(0.0, alias="deliveryTimeout")
    """How long writing a message may take, including retries; 0s: two minutes."""
    linger: Duration = 0.005
    """How long a message waits for others to fill a batch."""
    transaction_timeout: PositiveServerDuration = Field(120.0, alias="transaction-timeout")
    """How long one delivery may take with exactly-once. After a crash, ``read_committed`` consumers are blocked for
    that long, unless the run is started again before. Limited by the brokers' ``transaction.max.timeout.ms``."""
    transactional_id: str = Field("", alias="transactional-id")
    """The transactional id of this destination. Empty: ``conduit-PIPELINE/CONNECTOR``. No two projects that write to
    the same cluster may use the same one."""
    deliveries_topic: str = Field("conduit-deliveries", alias="deliveries-topic")
    """The compacted topic of delivery hashes, for exactly-once. It is created if it does not exist."""
    on_deliveries_gone: Literal["fail", "resend"] = Field("fail", alias="on-deliveries-gone")
    """What to do with a prepared step if ``deliveries-topic`` was deleted or lost messages meanwhile, so that nothing
    says whether the step was written. ``fail``: the pipeline stops; ``resend``: it is written, perhaps again."""

    @model_validator(mode="after")
    def _check(self) -> KafkaDestinationSettings:
        make_format(self.format, self.format_options)
        try:
            require_topic(self.deliveries_topic)
        except ValueError as error:
            raise refuse(str(error), fix="correct deliveries-topic") from None
        if compile_template(self.topic).literal == self.deliveries_topic:
            raise refuse("records can't go into deliveries-topic", fix="name another topic")
        if self.transaction_timeout < 1:
            raise refuse("transaction-timeout is less than a second", fix="raise it", at="transaction-timeout")
        if self.linger > _LONGEST_LINGER:
            raise refuse("linger is longer than 15 minutes", fix="lower it", at="linger")
        if self.linger >= self.message_timeout:
            limits = "deliveryTimeout and transaction-timeout"
            raise refuse(f"linger must be shorter than {limits}", fix="lower linger", at="linger")
        return self

    @property
    def message_timeout(self) -> float:
        """Seconds that writing a message may take, at most ``transaction-timeout``."""
        return min(self.delivery_timeout or 120.0, self.transaction_timeout)
