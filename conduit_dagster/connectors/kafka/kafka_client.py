"""Client configuration (librdkafka) from the settings of a connector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from conduit_dagster.config.scalars import comma_separated
from conduit_dagster.connectors.kafka.kafka_errors import KafkaErrors
from conduit_dagster.connectors.kafka.settings import KafkaSettings
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
