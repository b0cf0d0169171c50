"""Common parts of the tests' own servers: a port, and a guard that ends them with the tests."""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess


def guard_of(server: int, end: signal.Signals) -> subprocess.Popen[bytes]:
    """Start a guard that ends the server when the tests are killed: it detects the end of its input."""
    command = ["sh", "-c", f'read _; kill -{end.value} "$0"', str(server)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def free_port() -> int:
    """Return a port below the ephemeral range: it must still be free when the server starts, and restarts.

    A client's connection may take any port of that range meanwhile.
    """
    for _ in range(100):
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise RuntimeError("no free port")
