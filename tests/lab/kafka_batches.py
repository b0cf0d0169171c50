"""Messages that no client of the tests can write, sent as bytes of Kafka's protocol (KIP-98's record batches)."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

_CRC_32C = 0x82F63B78
_ANSWER = 16
"""Bytes of a response before and behind its topic, up to the error code."""


def send_with_time(port: int, topic: str, value: bytes, milliseconds: int) -> None:
    """Write one message with a timestamp, such as -1, into partition 0."""
    _send(port, topic, value, milliseconds, ())


def send_with_headers(port: int, topic: str, value: bytes, headers: Sequence[tuple[bytes, bytes | None]]) -> None:
    """Write one message with headers, whose names may be any bytes, into partition 0."""
    # of now, as retention removes old ones
    _send(port, topic, value, round(time.time() * 1_000), headers)


def _send(
    port: int, topic: str, value: bytes, milliseconds: int, headers: Sequence[tuple[bytes, bytes | None]]
) -> None:
    named = b"".join(_sized(name) + _sized(content) for name, content in headers)
    body = b"\0" + _varint(0) + _varint(0) + _sized(None) + _sized(value) + _varint(len(headers)) + named
    record = _varint(len(body)) + body
    fields = struct.pack(">hiqqqhii", 0, 0, milliseconds, milliseconds, -1, -1, -1, 1) + record
    head = struct.pack(">qiib", 0, 9 + len(fields), 0, 2)
    batch = head + struct.pack(">I", _checksum(fields)) + fields
    name = struct.pack(">h", len(topic)) + topic.encode()
    client, acks = struct.pack(">hhih", 0, 3, 1, 1) + b"t", struct.pack(">hhi", -1, -1, 30_000)
    request = client + acks + struct.pack(">i", 1) + name + struct.pack(">iii", 1, 0, len(batch)) + batch
    with socket.create_connection(("127.0.0.1", port), 60) as line:
        line.sendall(struct.pack(">i", len(request)) + request)
        with line.makefile("rb") as answer:
            answer.read(4 + _ANSWER + len(name))
            assert answer.read(2) == b"\0\0"


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    rest, found = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def _checksum(data: bytes) -> int:
    found = 0xFFFFFFFF
    for byte in data:
        found ^= byte
        for _ in range(8):
            found = (found >> 1) ^ (_CRC_32C if found & 1 else 0)
    return found ^ 0xFFFFFFFF
