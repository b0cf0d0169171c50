"""A pooler before PostgreSQL, as PgBouncer is: it passes everything but connections for replication."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

_SAID = "unsupported startup parameter: replication"


@contextmanager
def pooler(port: int) -> Iterator[int]:
    """Run a pooler before the server at ``port``; yield its own port."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=_accept, args=(listener, port), daemon=True).start()
        yield int(listener.getsockname()[1])


def _accept(listener: socket.socket, port: int) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client, port), daemon=True).start()


def _serve(client: socket.socket, port: int) -> None:
    with closing(client), suppress(OSError):
        asked = _startup(client)
        if b"\x00replication\x00" in asked:
            fields = f"SFATAL\0C08P01\0M{_SAID}\0\0".encode()
            client.sendall(b"E" + struct.pack("!i", len(fields) + 4) + fields)
            return
        with closing(socket.create_connection(("127.0.0.1", port))) as server:
            server.sendall(asked)
            threading.Thread(target=_pass, args=(server, client), daemon=True).start()
            _pass(client, server)


def _startup(client: socket.socket) -> bytes:
    """Return the client's startup message; TLS and encrypted sessions, for which it asks first, are refused."""
    while True:
        head = client.recv(8, socket.MSG_WAITALL)
        size, code = struct.unpack("!ii", head)
        if code not in (80877103, 80877104):
            return head + client.recv(size - 8, socket.MSG_WAITALL)
        client.sendall(b"N")


def _pass(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
