"""Headers whose names are no text: the client library fails on them, or ends the process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab.kafka_batches import send_with_headers
from lab.kafka_server import KafkaServer
from lab.support import Lab, destination
from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("log", ["positions", "records"])
@pytest.mark.parametrize("step", [1, 100])
def test_a_header_whose_name_is_no_text_nacks_its_message(
    log: str, step: int, kafka_server: KafkaServer, tmp_path: Path, spark: SparkSession
) -> None:
    """Whole in the queue but for that header; the messages around it are delivered."""
    lab, topic, dead = Lab(tmp_path, spark), kafka_server.topic(), kafka_server.topic()
    bad, more = (b"caf\xe9", b"1"), (b"\xff", None)
    for value, headers in ((b"1", [(b"a", b"x")]), (b"2", [(b"a", b"x"), bad, (b"b", None), more]), (b"3", [])):
        send_with_headers(kafka_server.port, topic, value, headers)
    common = {"servers": kafka_server.servers}
    lab.pipeline(
        connectors=[
            {
                "id": "in", "type": "source", "plugin": "builtin:kafka",
                "settings": {**common, "topics": topic, "readFromBeginning": "true"},
            },
            destination("out", "./out.jsonl", **{"sdk.record.format": "payload/json"}),
        ],
        delivery={"log": log, "batch-size": step},
        **{"dead-letter-queue": {"plugin": "kafka", "settings": {**common, "topic": dead}, "window-size": 0}},
    )  # fmt: skip
    result = lab.run()
    assert result.error is None, result.error
    assert (tmp_path / "out.jsonl").read_text().split() == ["1", "3"]
    [letter] = [json.loads(message.value() or b"") for message in kafka_server.read(dead)]
    record, metadata = letter["payload"]["after"], letter["metadata"]
    assert "the name of a header is not UTF-8" in metadata["conduit.dlq.nack.error"], metadata
    assert {"kafka.header.a": "x", "kafka.header.b": ""}.items() <= record["metadata"].items()
