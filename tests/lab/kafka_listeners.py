"""Further listeners of a broker: with logins, with TLS, with both."""

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
    """One more address of a broker."""

    name: str
    protocol: str
    settings: Mapping[str, str]
    """Without the listener's own prefix."""

    @property
    def properties(self) -> str:
        """Lines for the broker's file."""
        prefix = f"listener.name.{self.name.lower()}"
        return "".join(f"{prefix}.{key}={value}\n" for key, value in self.settings.items())


def with_login(name: str, user: str, password: str, tls: Mapping[str, str] | None = None, only: str = "") -> Listener:
    """A listener that wants a login: PLAIN for this user; SCRAM for those that the broker was made with.

    ``only``: the one mechanism that it takes.
    """
    settings = {"sasl.enabled.mechanisms": only or ",".join(_MODULES), **(tls or {})}
    for mechanism, module in _MODULES.items():
        known = f' user_{user}="{password}"' if mechanism == "PLAIN" else ""
        settings[f"{mechanism.lower()}.sasl.jaas.config"] = f"{module} required{known};"
    return Listener(name, "SASL_SSL" if tls else "SASL_PLAINTEXT", settings)


def tls_settings(keystore: Path, clients: Path | None = None) -> dict[str, str]:
    """Settings of a listener with this key and certificate; ``clients``: the authority that clients' must be from."""
    settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keystore)}
    if clients is not None:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(clients)}
        settings |= {"ssl.client.auth": "required"}
    return settings
