"""Diagnosis of TLS failures, which the client library reports only in part or not at all.

Messages contain no secrets.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, NamedTuple

from conduit_dagster.config.scalars import comma_separated
from conduit_dagster.connectors.kafka.settings import KafkaSettings

_PATIENCE: Final = 2.0
_ALERT: Final = 1.0
"""Seconds to wait for a broker's rejection of the client's certificate, which TLS 1.3 sends after the handshake."""
_MOST: Final = 3
_PORT: Final = 9092
_PIPE: Final = 16_000
"""Bytes that fit into any pipe without a reader."""
_DATES: Final = (9, 10)
"""OpenSSL codes for a certificate that is not valid yet, and for one that has expired."""
_NAMES: Final = (62, 64)
"""OpenSSL codes for a certificate with another host name, and with another IP address."""


class _TlsProblem(NamedTuple):
    """A TLS problem and its fix."""

    message: str
    fix: str
    is_fatal: bool = True


def tls_problem(settings: KafkaSettings) -> _TlsProblem | None:
    """Return the first problem among the servers; None if there is none or no server can be reached."""
    for server in comma_separated(settings.servers)[:_MOST]:
        with suppress(OSError, ValueError):
            problem = _verified(server, settings) if settings.tls_enabled else _unencrypted(server)
            if problem is not None:
                return problem
    return None


def _verified(server: str, settings: KafkaSettings) -> _TlsProblem | None:
    context = _context(settings)
    try:
        with _connected(server, context) as line:
            line.settimeout(_ALERT)
            with suppress(TimeoutError):
                line.recv(1)
    except ssl.SSLCertVerificationError as error:
        return _not_trusted(server, error)
    except (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError):
        message = f"{server} hangs up when TLS begins: is it a listener without TLS?"
        return _TlsProblem(message, "name a listener with TLS in servers, or remove tls.enabled", is_fatal=False)
    except ssl.SSLError as error:
        return _refused(server, settings, error.reason or "")
    return None


def _refused(server: str, settings: KafkaSettings, reason: str) -> _TlsProblem:
    if any(word in reason for word in ("CERTIFICATE", "UNKNOWN_CA")):
        does = "refuses the client's certificate" if settings.client_cert else "wants a client's certificate"
        fix = "set clientCert and clientKey to a certificate that the brokers trust, and that is valid today, and its "
        fix += "key, as PEM text"
        return _TlsProblem(f"{server} {does}: {reason}", fix)
    fix = "look at the brokers' log, and at their ssl.enabled.protocols and ssl.cipher.suites"
    return _TlsProblem(f"{server} ends the TLS handshake: {reason}", fix, is_fatal=False)


def _not_trusted(server: str, error: ssl.SSLCertVerificationError) -> _TlsProblem:
    message = f"the certificate of {server} is not trusted: {error.verify_message}"
    if error.verify_code in _NAMES:
        fix = "name the broker in servers and in its advertised.listeners as its certificate names it"
        return _TlsProblem(message, f"{fix}, or add the name to the certificate (subjectAltName)")
    if error.verify_code in _DATES:
        return _TlsProblem(message, "give the broker a certificate that is valid today; and is the clock here right?")
    return _TlsProblem(message, "set caCert to the authority that signed the brokers' certificates, as PEM text")


def _unencrypted(server: str) -> _TlsProblem | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with _connected(server, context):
        return _TlsProblem(f"{server} is a listener with TLS", "set tls.enabled: true, and caCert")


def _context(settings: KafkaSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=settings.ca_cert or None)
    if settings.insecure_skip_verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if settings.client_cert:
        with ExitStack() as stack:
            files = [stack.enter_context(_as_file(text)) for text in (settings.client_cert, settings.client_key)]
            # empty password: an encrypted key must not prompt at the terminal
            context.load_cert_chain(*files, password="")
    return context


@contextmanager
def _connected(server: str, context: ssl.SSLContext) -> Generator[ssl.SSLSocket]:
    host, port = _address(server)
    with (
        socket.create_connection((host, port), _PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname=host) as line,
    ):
        yield line


def _address(server: str) -> tuple[str, int]:
    host, found, port = server.rpartition(":")
    if not found or server.endswith("]"):
        host, port = server, str(_PORT)
    return host.strip("[]"), int(port)


@contextmanager
def _as_file(text: str) -> Generator[str]:
    """Expose a text as a file that can be read once, without writing the private key to disk."""
    data = text.encode()
    if len(data) > _PIPE:
        raise ValueError("too long for a pipe")
    reading, writing = os.pipe()
    try:
        os.write(writing, data)
        os.close(writing)
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)
