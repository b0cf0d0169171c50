"""Additional listeners of a broker: with SASL, with TLS, or both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class Listener(NamedTuple):
    """An additional listener of a broker."""

    name: str
    protocol: str
    settings: Mapping[str, str]
    """Broker properties of the listener, without its prefix."""

    @property
    def properties(self) -> str:
        """Lines for ``server.properties``."""
        prefix = f"listener.name.{self.name.lower()}"
        return "".join(f"{prefix}.{key}={value}\n" for key, value in self.settings.items())


def with_login(name: str, user: str, password: str, tls: Mapping[str, str] | None = None, only: str = "") -> Listener:
    """Return a listener with SASL: PLAIN for this user, SCRAM for the users that the broker was formatted with.

    ``only``: the only mechanism to enable.
    """
    settings = {"sasl.enabled.mechanisms": only or ",".join(_MODULES), **(tls or {})}
    for mechanism, module in _MODULES.items():
        known = f' user_{user}="{password}"' if mechanism == "PLAIN" else ""
        settings[f"{mechanism.lower()}.sasl.jaas.config"] = f"{module} required{known};"
    return Listener(name, "SASL_SSL" if tls else "SASL_PLAINTEXT", settings)


def tls_settings(keystore: Path, clients: Path | None = None) -> dict[str, str]:
    """Return TLS settings of a listener; ``clients``: the authority of client certificates, which are then required."""
    settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keystore)}
    if clients is not None:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(clients)}
        settings |= {"ssl.client.auth": "required"}
    return settings
