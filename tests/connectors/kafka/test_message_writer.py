"""Staged messages are the same, whatever blocks the records come in."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_dagster.connectors.kafka.message_writer import MessageWriter
from conduit_dagster.connectors.kafka.settings import KafkaDestinationSettings
from conduit_dagster.connectors.kafka.staged_messages import MessageLayout, staged_chunks
from conduit_dagster.record import COLLECTION, Record
from conduit_dagster.sdk import Delivery, WriterTask

COUNT = 4_500
SETTINGS = {"servers": "h:9092", "sdk.record.format": "payload/json"}
TOPICS = {"one": "t", "several": '{{ index .Metadata "opencdc.collection" }}'}


def record(number: int) -> Record:
    """The middle third has headers; 11 has no topic, and is refused where records choose theirs."""
    names = {COLLECTION: "" if number == 11 else f"c{number % 3}"}
    headers = {"kafka.header.h": str(number)} if COUNT // 3 < number < COUNT * 2 // 3 else {}
    return Record(number, names | headers, {"i": number} if number % 5 else None, str(number).encode())


def written(root: Path, topic: str, size: int) -> tuple[bytes, list[tuple[int, str, bytes | None]]]:
    """The staged bytes, and place, topic and value of each message."""
    layout = MessageLayout(KafkaDestinationSettings.model_validate(SETTINGS | {"topic": topic}))
    writer = MessageWriter(WriterTask(str(root), 0, f"t{size}"), layout)
    refused = [
        first + refusal.place
        for first in range(0, COUNT, size)
        for refusal in writer.write([record(number) for number in range(first, min(first + size, COUNT))])
    ]
    assert refused == ([] if topic == "t" else [11])
    part = writer.finish()
    assert part is not None
    delivery = Delivery("h", 1, "out", str(root), (part,), {})
    messages = [
        (first + place, group.topic, value)
        for first, chunk in staged_chunks(delivery)
        for group in chunk.groups
        for place, value in zip(group.all_places, group.values, strict=True)
    ]
    return (root / part.name).read_bytes(), sorted(messages, key=lambda message: message[0])


@pytest.mark.parametrize("kind", TOPICS)
@pytest.mark.parametrize("size", [1, 7, 2_000])
def test_blocks_leave_no_trace(tmp_path: Path, kind: str, size: int) -> None:
    data, messages = written(tmp_path, TOPICS[kind], size)
    assert data == written(tmp_path, TOPICS[kind], COUNT)[0]
    numbers = [number for number in range(COUNT) if kind == "one" or number != 11]
    topics = ["t" if kind == "one" else f"c{number % 3}" for number in numbers]
    values = [f'{{"i":{number}}}'.encode() if number % 5 else None for number in numbers]
    assert messages == list(zip(range(len(numbers)), topics, values, strict=True))


@pytest.mark.parametrize("value", [b'"\xff"', b'{"a":"\xff"}', b"[" * 5_000, b"no JSON", b"[1]"])
def test_a_value_that_is_no_document_stays_raw(value: bytes) -> None:
    """Bytes that begin like JSON are rebuilt as well: a refused record needs its letter."""
    layout = MessageLayout(KafkaDestinationSettings.model_validate(SETTINGS | {"topic": "t"}))
    assert layout.record(value, b"k") == Record(0, {}, value, b"k")
