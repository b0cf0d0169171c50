"""Kafka with TLS and logins: each way works for source and destination, and each mistake is one clear error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from lab.certificates import Authority, Certificate
from lab.kafka_lab import ALL, KafkaLab, numbered
from lab.kafka_listeners import Listener, tls_settings, with_login
from lab.kafka_server import KafkaServer, running_kafka
from lab.support import Lab
from pydantic import ValidationError
from pyspark.sql import SparkSession

from conduit_dagster.connectors.kafka.settings import KafkaSourceSettings
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.sdk import ReadOptions, Split

PASSWORD, WRONG = "open-sesame-7", "open-barley-8"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
Settings = dict[str, str]


class Secured(NamedTuple):
    """A broker with a listener for each method, and what clients need for them."""

    server: KafkaServer
    authority: str
    foreign: str
    """Another authority."""
    client: Certificate
    stranger: Certificate
    """A client's certificate that the broker does not trust."""
    locked: Certificate
    """The client's, its key encrypted."""
    expired: Certificate
    """The client's, of yesterday."""

    def tls(self, listener: str, **more: str) -> Settings:
        """Settings for a listener with TLS."""
        return {"servers": self.server.at(listener), "tls.enabled": "true", "caCert": self.authority, **more}

    def login(self, mechanism: str, password: str = PASSWORD, listener: str = "LOGIN") -> Settings:
        """Settings for a listener with logins and no TLS."""
        servers = self.server.at(listener)
        return {"servers": servers, "saslMechanism": mechanism, "saslUsername": "alice", "saslPassword": password}

    def both(self, mechanism: str, password: str = PASSWORD) -> Settings:
        """Settings for the listener with logins and TLS."""
        return {**self.login(mechanism, password), **self.tls("BOTH")}

    def mutual(self, client: Certificate | None) -> Settings:
        """Settings for the listener that requires a client certificate."""
        return self.tls("MUTUAL", **({"clientCert": client.chain, "clientKey": client.key} if client else {}))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("certificates")
    ours, others = Authority(folder, "ours"), Authority(folder, "others")
    own = tls_settings(ours.issue("broker", "IP:127.0.0.1").write(folder / "own.pem"))
    elsewhere = tls_settings(ours.issue("broker", "DNS:kafka.example").write(folder / "elsewhere.pem"))
    expired = tls_settings(ours.issue("broker", "IP:127.0.0.1", days=-1).write(folder / "expired.pem"))
    listeners = [
        Listener("TLS", "SSL", own),
        Listener("EXPIRED", "SSL", expired),
        Listener("ELSEWHERE", "SSL", elsewhere),
        Listener("MUTUAL", "SSL", tls_settings(folder / "own.pem", ours.path)),
        with_login("LOGIN", "alice", PASSWORD),
        with_login("BOTH", "alice", PASSWORD, own),
        with_login("SCRAM", "alice", PASSWORD, only="SCRAM-SHA-512"),
    ]
    client, stranger = ours.issue("alice"), others.issue("alice")
    locked = Certificate(client.chain, ours.lock(client.key, PASSWORD))
    with running_kafka(listeners=listeners, scram={"alice": PASSWORD}) as server:
        expired = ours.issue("alice", days=-1)
        yield Secured(server, ours.certificate, others.certificate, client, stranger, locked, expired)


# -- what works ---------------------------------------------------------------------------------------------------

WAYS: dict[str, Callable[[Secured], Settings]] = {
    "tls": lambda s: s.tls("TLS"),
    "client certificate": lambda s: s.mutual(s.client),
    "any certificate": lambda s: {**s.tls("ELSEWHERE", insecureSkipVerify="true"), "caCert": ""},
    **{name: lambda s, name=name: s.login(name) for name in MECHANISMS},
    **{f"{name} over tls": lambda s, name=name: s.both(name) for name in MECHANISMS},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_records_go_in_and_out(way: str, secured: Secured, tmp_path: Path) -> None:
    lab, settings = KafkaLab(secured.server, tmp_path), WAYS[way](secured)
    topic = secured.server.topic()
    destination = lab.destination(topic, **settings)
    destination.check()
    destination.fence(1)
    delivery = lab.stage(destination, numbered(5))
    destination.publish(delivery)
    assert destination.holds(delivery)
    # read without the source first: that waits for the markers, which come after the answer to the commit
    assert [value["i"] for value in secured.server.values(topic)] == list(range(5))
    source = lab.source(topic, **settings)
    assert [json.loads(value or b"")["i"] for value in lab.values(source, source.initial())] == list(range(5))
    destination.close()
    source.close()


@pytest.mark.slow
def test_a_pipeline_with_its_password_and_authority_in_files(
    secured: Secured, spark: SparkSession, tmp_path: Path
) -> None:
    """Through Spark's tasks; staged and stored data contain no password."""
    lab, server = Lab(tmp_path, spark), secured.server
    topic, out = server.topic(), server.topic()
    server.send(topic, [(b"k", b"%d" % i) for i in range(10)])
    (tmp_path / "password").write_text(PASSWORD)
    (tmp_path / "ca.pem").write_text(secured.authority)
    login = {**secured.both("SCRAM-SHA-512"), "saslPassword": "${file:password}", "caCert": "${file:ca.pem}"}
    read = {**login, "topics": topic, "readFromBeginning": "true"}
    write = {**login, "topic": out, "sdk.record.format": "payload/json", "transactional-id": out}
    lab.pipeline(
        connectors=[
            {"id": "in", "type": "source", "plugin": "builtin:kafka", "settings": read},
            {"id": "out", "type": "destination", "plugin": "builtin:kafka", "settings": write},
        ],
        delivery={"strategy": "exactly-once"},
    )
    result = lab.run()
    assert result.error is None
    assert server.values(out) == list(range(10))
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "password"]
    assert kept and not [path for path in kept if PASSWORD.encode() in path.read_bytes()]


# -- what does not ------------------------------------------------------------------------------------------------


class Mistake(NamedTuple):
    """Settings that can't work, and the expected messages."""

    settings: Callable[[Secured], Settings]
    code: str
    said: str
    fix: str
    is_fatal: bool = True

    def is_said(self, error: ConduitError) -> bool:
        """Return whether an error has the expected message."""
        return re.search(self.said, str(error)) is not None


def _wrong(mechanism: str) -> Mistake:
    said = "Invalid username or password" if mechanism == "PLAIN" else "invalid credentials"
    return Mistake(lambda s: s.login(mechanism, WRONG), "kafka.login", said, "saslPassword")


MISTAKES = {
    "another authority": Mistake(
        lambda s: s.tls("TLS", caCert=s.foreign), "kafka.tls", "is not trusted: unable to get local", "set caCert"
    ),
    "the machine's authorities": Mistake(
        lambda s: s.tls("TLS", caCert=""), "kafka.tls", "is not trusted: unable to get local issuer", "set caCert"
    ),
    "another host's certificate": Mistake(
        lambda s: s.tls("ELSEWHERE"), "kafka.tls", "certificate is not valid for '127.0.0.1'", "advertised.listeners"
    ),
    "an expired certificate": Mistake(
        lambda s: s.tls("EXPIRED"), "kafka.tls", "is not trusted: certificate has expired", "that is valid today"
    ),
    "a key with a password": Mistake(
        lambda s: s.mutual(s.locked), "kafka.tls", "no client can be made", "the key, without a password"
    ),
    "no client certificate": Mistake(
        lambda s: s.mutual(None), "kafka.tls", "wants a client's certificate: .*ALERT", "set clientCert and clientKey"
    ),
    "an unknown client certificate": Mistake(
        lambda s: s.mutual(s.stranger), "kafka.tls", "refuses the client's certificate: .*ALERT", "set clientCert"
    ),
    "an expired client certificate": Mistake(
        lambda s: s.mutual(s.expired), "kafka.tls", "refuses the client's certificate: .*ALERT", "valid today"
    ),
    "another certificate's key": Mistake(
        lambda s: s.mutual(Certificate(s.client.chain, s.stranger.key)), "kafka.tls", "no client can be made", "key"
    ),
    "TLS to a listener without": Mistake(
        lambda s: s.tls("LOGIN"), "kafka.unreachable", "hangs up when TLS begins", "remove tls.enabled", is_fatal=False
    ),
    "no TLS to a listener with": Mistake(
        lambda s: {"servers": s.server.at("TLS")}, "kafka.tls", "is a listener with TLS", "set tls.enabled: true"
    ),
    "no login": Mistake(
        lambda s: {"servers": s.server.at("LOGIN")}, "kafka.unreachable", "imed out", "saslMechanism", is_fatal=False
    ),
    "a mechanism that is off": Mistake(
        lambda s: s.login("PLAIN", listener="SCRAM"), "kafka.login", "PLAIN", "correct saslMechanism"
    ),
    "a wrong password over tls": Mistake(
        lambda s: s.both("SCRAM-SHA-512", WRONG), "kafka.login", "invalid credentials", "saslPassword"
    ),
    **{f"a wrong password with {name}": _wrong(name) for name in MECHANISMS},
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_error(mistake: str, secured: Secured, tmp_path: Path) -> None:
    """On the driver and in a task, for both sides: with its place and the fix, and without a secret."""
    known, lab = MISTAKES[mistake], KafkaLab(secured.server, tmp_path)
    topic = secured.server.topic()
    secured.server.send(topic, [(b"k", b"1")])
    good = lab.source(topic)
    start = good.initial()
    [split] = good.split(start, good.latest(start, ALL), 1)
    settings = known.settings(secured)
    errors = _errors(lab, topic, split, {**settings, "timeout": "1500ms"})
    if not all(known.is_said(error) for error in errors):  # a busy machine takes longer for a handshake
        errors = _errors(lab, topic, split, {**settings, "timeout": "20s"})
    for error in errors:
        assert isinstance(error, FatalError if known.is_fatal else TransientError)
        assert known.is_said(error), error
        assert (error.code, error.place) == (known.code, settings["servers"])
        assert known.fix in (error.fix or "")
        _require_masked(error, secured)


def _errors(lab: KafkaLab, topic: str, split: Split, settings: Settings) -> list[ConduitError]:
    source, destination = lab.source(topic, **settings), lab.destination(topic, **settings)

    def fail(call: Callable[[], object]) -> ConduitError:
        with pytest.raises(ConduitError) as error:
            call()
        return error.value

    calls = (source.horizon, lambda: list(source.read(split, ReadOptions())), destination.check)
    with ThreadPoolExecutor(len(calls)) as pool:
        errors = list(pool.map(fail, calls))
    for connector in (source, destination):
        connector.close()
        assert WRONG not in repr(connector.settings) and PASSWORD not in repr(connector.settings)
    return errors


def _require_masked(error: ConduitError, secured: Secured) -> None:
    text = f"{error!r} {error} {error.fix}"
    keys = [line for one in (secured.client, secured.stranger, secured.locked) for line in one.key.splitlines()[1:-1]]
    assert not [secret for secret in (PASSWORD, WRONG, *keys) if secret in text]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["exactly-once", "at-least-once"])
def test_a_password_that_was_changed_stops_the_destination(strategy: str, secured: Secured, tmp_path: Path) -> None:
    """The topics are known already; the producer is the first to be refused."""
    lab, topic = KafkaLab(secured.server, tmp_path), secured.server.topic()
    known, wrong = (lab.destination(topic, strategy=strategy, **s) for s in _changed(secured))
    known.check()
    wrong._topics = known._topics
    with pytest.raises(FatalError) as error:
        wrong.publish(lab.stage(wrong, numbered(3)))
    assert error.value.code == "kafka.login" and "saslPassword" in (error.value.fix or "")
    _require_masked(error.value, secured)


def _changed(secured: Secured) -> tuple[Settings, Settings]:
    short = {"timeout": "6s", "deliveryTimeout": "6s"}
    return secured.both("SCRAM-SHA-256"), {**secured.both("SCRAM-SHA-256", WRONG), **short}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"caCert": "/etc/ssl/ca.pem"}, "caCert is not PEM text"),
        ({"clientCert": "client.pem", "clientKey": "client.key"}, "clientCert is not PEM text"),
    ],
)
def test_a_path_in_place_of_a_certificate_is_told(settings: Settings, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        KafkaSourceSettings.model_validate({"servers": "h:9092", "topics": "t", "tls.enabled": "true", **settings})
