"""Kafka as source, as destination, and as both, beside a bare loop with the same client in one process."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from benchmarks import engine
from benchmarks.bench import Bench
from benchmarks.compare import Side, compare
from benchmarks.files import counts
from benchmarks.setup import write_pipeline

_PARTITIONS = 4
_BATCH = 3_000
_TRANSACTION = 100_000
"""Messages per transaction of the loop: one of our steps with the default batch size."""


def kafka_in(bench: Bench) -> dict[str, Any]:
    """Write messages of a hundred bytes as lines to files; the loop appends to one file and stores no position."""
    topic, root, lines = _filled(bench), bench.work / "ours", bench.work / "plain" / "out"
    output = {"path": "./out/", "sdk.record.format": "payload/json"}

    def prepare() -> None:
        _write(root, _source(bench, topic), _connector("file", output), "at-least-once")

    def loop() -> float:
        began = time.perf_counter()
        with (lines / "part-0").open("wb") as file:
            for values in _values(bench, topic):
                file.write(b"\n".join([value for _, value in values]) + b"\n")
        return time.perf_counter() - began

    def clear() -> None:
        shutil.rmtree(lines, ignore_errors=True)
        lines.mkdir(parents=True)

    ours = Side("ours", prepare, lambda: engine.drain(root, bench.spark), lambda: counts(root, ["out"]), bench.records)
    return compare(
        [ours, Side("bare loop", clear, loop, lambda: counts(lines.parent, ["out"]), bench.records)],
        bench.records,
        bench.rounds,
    )


def kafka_out(bench: Bench) -> dict[str, Any]:
    """Write lines of a hundred bytes as messages, in transactions; the loop stores neither a position nor a hash."""
    path = bench.work / f"lines-{bench.records}"
    if not path.exists():
        with path.open("wb") as file:
            file.writelines(_payload(number) + b"\n" for number in range(bench.records))

    def loop(topic: str) -> None:
        with path.open("rb") as file:
            _transactions(bench, topic, _numbered(file))

    return _into_topics(bench, _connector("file", {"path": str(path)}), loop)


def kafka_through(bench: Bench) -> dict[str, Any]:
    """Copy messages from topic to topic."""
    topic = _filled(bench)
    return _into_topics(
        bench, _source(bench, topic), lambda target: _transactions(bench, target, _values(bench, topic))
    )


def _into_topics(bench: Bench, source: dict[str, Any], loop: Callable[[str], None]) -> dict[str, Any]:
    """Measure both, each run with a new topic."""
    root, current = bench.work / "ours", [""]

    def prepare() -> None:
        current[0] = bench.broker.topic(_PARTITIONS)
        settings = {
            "servers": bench.broker.servers, "topic": current[0], "sdk.record.format": "payload/json",
            "transactional-id": current[0],
        }  # fmt: skip
        _write(root, source, _connector("kafka", settings), "exactly-once")

    def looped() -> float:
        began = time.perf_counter()
        loop(current[0])
        return time.perf_counter() - began

    def found() -> list[int]:
        return [sum(len(values) for values in _values(bench, current[0]))]

    ours = Side("ours", prepare, lambda: engine.drain(root, bench.spark), found, bench.records)
    return compare([ours, Side("bare loop", prepare, looped, found, bench.records)], bench.records, bench.rounds)


def _payload(number: int) -> bytes:
    return b'{"id": %09d, "name": "somebody", "city": "Zagreb", "amount": 12.5, "text": "%s"}' % (number, b"x" * 26)


def _filled(bench: Bench) -> str:
    """Return a topic with the requested number of messages."""
    topic = bench.broker.topic(_PARTITIONS)
    producer = Producer({"bootstrap.servers": bench.broker.servers, "linger.ms": 5, "compression.type": "snappy"})
    for first in range(0, bench.records, _BATCH):
        numbers = range(first, min(first + _BATCH, bench.records))
        producer.produce_batch(topic, [{"value": _payload(n), "key": b"%d" % n} for n in numbers])
        producer.flush(60)
    return topic


def _values(bench: Bench, topic: str) -> Iterator[list[tuple[bytes | None, bytes]]]:
    """Yield all keys and values of a topic, partition by partition, as fast as the client delivers them."""
    for partition in range(_PARTITIONS):
        consumer = Consumer({
            "bootstrap.servers": bench.broker.servers, "group.id": "bench", "enable.auto.commit": False,
            "isolation.level": "read_committed", "enable.partition.eof": True, "fetch.wait.max.ms": 20,
            "queued.min.messages": 50_000, "fetch.queue.backoff.ms": 5,
        })  # fmt: skip
        consumer.assign([TopicPartition(topic, partition, 0)])
        ended = False
        while not ended:
            messages = consumer.consume(_BATCH, 0) or consumer.consume(1, 1.0)
            found = [(one.key(), one.value() or b"") for one in messages if one.error() is None]
            ended = any(e.code() == KafkaError._PARTITION_EOF for one in messages if (e := one.error()) is not None)
            if found:
                yield found
        consumer.close()


def _transactions(bench: Bench, topic: str, values: Iterator[Sequence[tuple[bytes | None, bytes]]]) -> None:
    producer = Producer({
        "bootstrap.servers": bench.broker.servers, "transactional.id": f"loop-{secrets.token_hex(4)}",
        "compression.type": "snappy", "partitioner": "murmur2_random", "linger.ms": 5,
        "queue.buffering.max.messages": 1_000_000,
    })  # fmt: skip
    producer.init_transactions(30)
    count = 0
    producer.begin_transaction()
    for some in values:
        producer.produce_batch(topic, [{"value": value, "key": key} for key, value in some])
        count += len(some)
        if count >= _TRANSACTION:
            producer.commit_transaction(60)
            producer.begin_transaction()
            count = 0
    producer.commit_transaction(60)


def _numbered(file: Any) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield lines with their numbers, which are the keys of the file source."""
    first = 1
    while some := file.readlines(_BATCH * 100):
        yield [(b"%d" % number, line[:-1]) for number, line in enumerate(some, first)]
        first += len(some)


def _source(bench: Bench, topic: str) -> dict[str, Any]:
    return _connector("kafka", {"servers": bench.broker.servers, "topics": topic, "start-from": "earliest"})


def _connector(plugin: str, settings: dict[str, str]) -> dict[str, Any]:
    return {"plugin": f"builtin:{plugin}", "settings": settings}


def _write(root: Path, source: dict[str, Any], output: dict[str, Any], strategy: str) -> None:
    shutil.rmtree(root, ignore_errors=True)
    pipeline = {
        "id": "bench",
        "trigger": "available-now",
        "delivery": {"strategy": strategy, "max-in-flight": 2},
        "connectors": [{"id": "in", "type": "source", **source}, {"id": "out", "type": "destination", **output}],
        "dead-letter-queue": {"plugin": "builtin:file", "settings": {"path": "./dead.jsonl"}, "window-size": 0},
    }
    write_pipeline(root, pipeline)
