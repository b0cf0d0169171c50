"""Single records through ``avro.encode`` and ``avro.decode``."""

from __future__ import annotations

from typing import Any

from processors.conftest import make

from conduit_dagster.record import Record

AUTO = {"schema.strategy": "autoRegister", "schema.autoRegister.subject": "orders"}
FIRST = {
    "schema.strategy": "preRegistered",
    "schema.preRegistered.subject": "example",
    "schema.preRegistered.version": "1",
}
WIRE = b"\x00\x00\x00\x00\x01"


def one(name: str, record: Record, more: dict[str, str]) -> Any:
    """The result for a record."""
    [result] = make(name, more).process_block([record])
    return result


def encode(record: Record, url: str, **more: str) -> Any:
    """With schemas derived from the records."""
    return one("avro.encode", record, {**AUTO, "url": url, **more})


def decode(record: Record, url: str, **more: str) -> Any:
    """Its content."""
    return one("avro.decode", record, {"url": url, **more})
