"""Messages between the two halves of a task: their length, then their bytes."""

from __future__ import annotations

import socket
import struct
from typing import Any

_LENGTH = struct.Struct("<Q")


def send(connection: socket.socket, head: bytes, body: Any) -> None:
    """Send head and body as one message."""
    connection.sendall(_LENGTH.pack(len(head) + len(body)) + head)
    if len(body):
        connection.sendall(body)


def receive(connection: socket.socket) -> bytes | None:
    """Return the next message; None if the other side has closed. Raises ``TimeoutError`` only before it begins."""
    if not (first := connection.recv(1)):
        return None
    timeout = connection.gettimeout()
    connection.settimeout(None)
    try:
        length = _exactly(connection, _LENGTH.size - 1)
        return None if length is None else _exactly(connection, _LENGTH.unpack(first + length)[0])
    finally:
        connection.settimeout(timeout)


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray(count)
    view, got = memoryview(data), 0
    while got < count:
        if not (read := connection.recv_into(view[got:])):
            return None
        got += read
    return bytes(data)
