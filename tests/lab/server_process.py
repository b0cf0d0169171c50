"""What the tests' own servers have in common: a port, and an end when the tests end, however they do."""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess


def guard_of(server: int, end: signal.Signals) -> subprocess.Popen[bytes]:
    """Ends the server when the tests are killed: it notices the end of its input."""
    command = ["sh", "-c", f'read _; kill -{end.value} "$0"', str(server)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def free_port() -> int:
    """Below the ports that clients get: it must still be free when the server starts for the second time."""
    for _ in range(100):
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise RuntimeError("no free port")
