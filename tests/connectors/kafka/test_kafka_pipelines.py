"""Pipelines from Kafka to Kafka: every message once, through crashes of the run, of the broker, and of both."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from lab.choice import some
from lab.kafka_server import KafkaServer
from lab.kills import at, crashing
from lab.postgres_server import PostgresServer
from lab.support import Lab, destination, processor, queue
from pyspark.sql import SparkSession

from conduit_dagster.cli.main import main
from conduit_dagster.connectors.kafka import message_sizes
from conduit_dagster.engine.appender import Appender
from conduit_dagster.engine.dead_letters.letter_layout import DLQ_OFFSET
from conduit_dagster.engine.stager import Stager
from conduit_dagster.recovery.errors import TransientError

pytestmark = pytest.mark.slow
_POINTS = some(["mid-publish"], ["after-stage", "after-prepare", "after-publish", "after-delivered"])
"""The kill matrix has all of them, with a file as the source."""


class Pipe:
    """A project with one pipeline from a topic to another, with a dead-letter queue in a third."""

    def __init__(self, server: KafkaServer, lab: Lab, strategy: str = "exactly-once", **delivery: Any) -> None:
        self.server, self.lab = server, lab
        self.source, self.target, self.dead = server.topic(3), server.topic(2), server.topic()
        self._write(strategy, delivery)

    def _write(self, strategy: str, delivery: dict[str, Any]) -> None:
        common = {"servers": self.server.servers}
        out = {"topic": self.target, "sdk.record.format": "payload/json", "transactional-id": self.target}
        dead = {"topic": self.dead, "transactional-id": self.dead}
        self.lab.pipeline(
            connectors=[
                {
                    "id": "in", "type": "source", "plugin": "builtin:kafka",
                    "settings": {**common, "topics": self.source, "readFromBeginning": "true"},
                },
                {"id": "out", "type": "destination", "plugin": "kafka", "settings": {**common, **out}},
            ],
            processors=[
                processor("decode", "json.decode", field=".Payload.After"),
                processor("refuse", "error", "after.i == 13", message="unlucky"),
            ],
            delivery={"strategy": strategy, "batch-size": 40, **delivery},
            **{"dead-letter-queue": {"plugin": "kafka", "settings": {**common, **dead}, "window-size": 0}},
        )  # fmt: skip

    def feed(self, numbers: range) -> None:
        """Messages with these numbers, in transactions of ten, every second one followed by an aborted one."""
        for first in range(numbers.start, numbers.stop, 10):
            rows = [(b"%d" % (i % 5), b'{"i": %d}' % i) for i in range(first, min(first + 10, numbers.stop))]
            self.server.transaction(self.source, rows, partition=first // 10 % 3)
            if first % 20:
                self.server.transaction(self.source, [(b"x", b'{"i": -1}')], first // 10 % 3, commit=False)

    def run(self) -> None:
        """Run it; again after a transient error, as recovery does."""
        for _ in range(5):
            result = self.lab.run()
            if not isinstance(result.error, TransientError):
                break
        assert result.error is None, result.error

    def require(self, count: int) -> None:
        """All of them exist, for two readers of committed messages; the dead letter too."""
        for _ in range(2):
            found = Counter(value["i"] for value in self.server.values(self.target))
            assert found == Counter(i for i in range(count) if i != 13)
        dead = [json.loads(m.value() or b"")["payload"]["after"] for m in self.server.read(self.dead)]
        assert len(dead) == 1


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    return Lab(tmp_path, spark)


def test_from_kafka_to_kafka(lab: Lab, kafka_server: KafkaServer) -> None:
    """Steps, runs, and the order of each key."""
    pipe = Pipe(kafka_server, lab)
    pipe.feed(range(120))
    pipe.run()
    pipe.feed(range(120, 160))
    pipe.run()
    pipe.run()
    pipe.require(160)


@pytest.mark.parametrize("point", _POINTS)
def test_a_run_and_its_broker_that_die(lab: Lab, kafka_server: KafkaServer, point: str) -> None:
    """Both at once, in the second step."""
    pipe = Pipe(kafka_server, lab)
    pipe.feed(range(100))
    passage = 1 if point == "after-stage" else 3
    with crashing(point, passage):
        lab.run()
    kafka_server.kill()
    kafka_server.start()
    pipe.run()
    pipe.require(100)


def test_a_broker_that_dies_while_it_is_written_to(lab: Lab, kafka_server: KafkaServer) -> None:
    """The run waits for it, or stops and is started again."""
    pipe = Pipe(kafka_server, lab, **{"max-in-flight": 2})
    pipe.feed(range(100))

    def restart() -> None:
        kafka_server.kill()
        kafka_server.start()

    with at("mid-publish", restart, 2):
        pipe.run()
    pipe.require(100)


def test_messages_go_through_the_log(lab: Lab, kafka_server: KafkaServer) -> None:
    """Their number is known only after reading: they are logged before the step."""
    pipe = Pipe(kafka_server, lab, log="records")
    pipe.feed(range(60))
    pipe.run()
    pipe.feed(range(60, 90))
    pipe.run()
    pipe.require(90)


def _to_file(
    lab: Lab,
    server: KafkaServer,
    topic: str,
    size: int = 20,
    processors: Sequence[Any] = (),
    log: str = "positions",
    to: str = "out",
    **settings: str,
) -> None:
    own = {"servers": server.servers, "topics": topic, "readFromBeginning": "true", **settings}
    lab.pipeline(
        connectors=[
            {"id": "in", "type": "source", "plugin": "kafka", "settings": own},
            {
                "id": to, "type": "destination", "plugin": "file",
                "settings": {"path": "./out.jsonl", "sdk.record.format": "payload/json"},
            },
        ],
        processors=list(processors),
        delivery={"strategy": "exactly-once", "batch-size": size, "log": log},
    )  # fmt: skip


def _lines(lab: Lab) -> list[int]:
    return sorted(map(int, (lab.root / "out.jsonl").read_text().split()))


def _rows(numbers: range) -> list[tuple[bytes | None, bytes | None]]:
    return [(b"%d" % i, b"%d" % i) for i in numbers]


def test_several_tasks_read_a_topic_without_gaps(lab: Lab, kafka_server: KafkaServer) -> None:
    """If a step contains one after all, it stops there, and goes on once the setting is gone."""
    topic = kafka_server.topic(3)
    _to_file(lab, kafka_server, topic, **{"dense-offsets": "true"})
    kafka_server.send(topic, _rows(range(100)))
    assert lab.run(parallelism=2).error is None
    assert _lines(lab) == list(range(100))
    kafka_server.transaction(topic, _rows(range(100, 103)))
    kafka_server.send(topic, _rows(range(103, 104)), 0)
    error = lab.run(parallelism=2).error
    assert error is not None and error.code == "kafka.gap"
    _to_file(lab, kafka_server, topic)
    assert lab.run().error is None
    assert _lines(lab) == list(range(104))


@pytest.mark.parametrize(("log", "reader"), [("positions", Stager), ("records", Appender)])
def test_a_large_step_is_shared_until_a_task_meets_a_gap(
    lab: Lab, kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch, log: str, reader: Any
) -> None:
    """Then one task reads it again: nothing is lost or duplicated, and dead letters are those of one task."""
    # a busy broker takes longer for a sample than a step waits for it; the step would then be another one
    monkeypatch.setattr(message_sizes, "_PATIENCE", 60.0)
    topic, tasks = kafka_server.topic(3), list[int]()
    _refusing(lab, kafka_server, topic, log)
    run = reader._run
    monkeypatch.setattr(reader, "_run", lambda self, job: tasks.append(len(job.tasks)) or run(self, job))
    kafka_server.send(topic, _long(range(700)))
    assert lab.run(parallelism=2).error is None
    kafka_server.send(topic, _long(range(700, 1300)), 0)
    kafka_server.transaction(topic, _long(range(1300, 1303)), 0)
    kafka_server.send(topic, _long(range(1303, 1400)), 0)
    # a message that is aborted takes an offset, and so does its mark
    kafka_server.send(topic, _long(range(1400, 1450)), 2)
    kafka_server.transaction(topic, _long(range(1)), 2, commit=False)
    kafka_server.send(topic, _long(range(1450, 1500)), 2)
    assert lab.run(parallelism=2).error is None
    kafka_server.send(topic, _long(range(1500, 2100)), 1)
    assert lab.run(parallelism=2).error is None
    assert [min(count, 2) for count in tasks] == [2, 2, 1, 2]
    assert sorted(row["i"] for row in lab.documents("out.jsonl")) == [i for i in range(2100) if i % 40 != 7]
    letters = lab.documents("dead.jsonl")
    assert sorted(letter["payload"]["after"]["payload"]["after"]["i"] for letter in letters) == list(range(7, 2100, 40))
    offsets = [int(letter["metadata"][DLQ_OFFSET]) for letter in letters]
    assert offsets == sorted(set(offsets)) and offsets[-1] < 2100


def _long(numbers: range) -> list[tuple[bytes | None, bytes | None]]:
    """Documents of 8 KB: a few hundred justify several tasks."""
    return [(None, b'{"i": %d, "text": "%s"}' % (i, b"x" * 8_000)) for i in numbers]


def _refusing(lab: Lab, server: KafkaServer, topic: str, log: str = "positions") -> None:
    own = {"servers": server.servers, "topics": topic, "readFromBeginning": "true"}
    lab.pipeline(
        connectors=[
            {"id": "in", "type": "source", "plugin": "kafka", "settings": own},
            destination("out"),
        ],
        processors=[
            processor("decode", "json.decode", field=".Payload.After"),
            processor("short", "field.exclude", fields=".Payload.After.text"),
            processor("refuse", "error", "after.i % 40 == 7", message="unlucky"),
        ],
        delivery={"strategy": "exactly-once", "batch-size": 10_000, "log": log},
        **{"dead-letter-queue": queue()},
    )


def test_both_ways_on_after_messages_are_gone(
    lab: Lab, kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the error says: the command, and the setting."""
    topic = kafka_server.topic()
    (lab.root / "conduit.yaml").write_text("log: {level: info}\n")
    monkeypatch.chdir(lab.root)
    _to_file(lab, kafka_server, topic)
    kafka_server.send(topic, _rows(range(10)))
    assert lab.run().error is None
    kafka_server.send(topic, _rows(range(10, 20)))
    kafka_server.delete_before(topic, 0, 15)
    error = lab.run().error
    assert error is not None and error.code == "kafka.range_gone" and error.fatal
    (command,) = re.findall(r"conduit-dagster (positions rewind .* --to-start)", error.fix or "")
    assert main(command.split()) == 0, capsys.readouterr().out
    assert lab.run().error is None
    assert _lines(lab) == [*range(10), *range(15, 20)]
    kafka_server.send(topic, _rows(range(20, 30)))
    kafka_server.delete_before(topic, 0, 25)
    _to_file(lab, kafka_server, topic, **{"on-gone": "skip"})
    assert lab.run().error is None
    assert _lines(lab) == [*range(10), *range(15, 20), *range(25, 30)]


@pytest.mark.parametrize("log", ["positions", "records"])
def test_skip_needs_no_operator_where_a_topic_is_made_anew_under_a_step(
    lab: Lab, kafka_server: KafkaServer, log: str
) -> None:
    """Between its plan and its end: what was read of it may be either topic's."""
    topic = kafka_server.topic()
    kafka_server.send(topic, _rows(range(10)))
    _to_file(lab, kafka_server, topic, log=log, **{"on-gone": "skip"})

    def make_anew() -> None:
        kafka_server.delete(topic)
        kafka_server.topic(name=topic)
        kafka_server.send(topic, _rows(range(20, 40)))

    with at("before-log" if log == "records" else "before-stage", make_anew):
        error = lab.run().error
    assert isinstance(error, TransientError) and error.code == "kafka.topic_changed"
    assert lab.run().error is None
    assert _lines(lab) == list(range(20, 40))


@pytest.mark.parametrize("on_gone", ["fail", "skip"])
def test_a_prepared_step_without_its_staging_and_its_messages_is_given_up_as_the_error_says(
    lab: Lab, kafka_server: KafkaServer, on_gone: str
) -> None:
    """The error said to rewind, which a prepared step forbids; with ``skip`` the run was tried again for ever."""
    topic = kafka_server.topic()
    _to_file(lab, kafka_server, topic, **{"on-gone": on_gone})
    kafka_server.send(topic, _rows(range(10)))
    with crashing("after-prepare"):
        lab.run()
    shutil.rmtree(lab.root / ".conduit" / "staging")
    kafka_server.delete_before(topic, 0, 5)
    error = lab.run().error
    assert error is not None and (error.code, error.fatal, error.node) == ("delivery.rebuild_differs", True, "p:in")
    assert "messages from 0 to 10 are not all there" in error.message and "another id" in (error.fix or "")
    kafka_server.send(topic, _rows(range(10, 12)))
    _to_file(lab, kafka_server, topic, to="other", **{"on-gone": on_gone})
    assert lab.run().error is None
    assert _lines(lab) == [10, 11]


_SLOW = """
import time
from conduit_dagster.sdk import Processor

class Slow(Processor):
    \"\"\"Takes long enough for the client to fetch everything meanwhile.\"\"\"

    name = "slow"

    def process(self, record):
        time.sleep(0.0005)
        return record
"""


@pytest.mark.parametrize("size", [120, 200])
def test_a_step_gives_nothing_of_the_next_one(lab: Lab, kafka_server: KafkaServer, size: int) -> None:
    """The client has messages behind the step's end, and the partition's end behind them, when the step is read."""
    topic = kafka_server.topic()
    (lab.root / "plugins").mkdir()
    (lab.root / "plugins" / "slow.py").write_text(_SLOW)
    _to_file(lab, kafka_server, topic, size, [processor("slow", "slow")])
    kafka_server.send(topic, _rows(range(1_000)))
    result = lab.run()
    assert (result.error, result.progress.read) == (None, 1_000)
    assert _lines(lab) == list(range(1_000))


def test_staging_that_is_lost_is_made_again_from_the_same_blocks(
    lab: Lab, kafka_server: KafkaServer, postgres_server: PostgresServer
) -> None:
    """However the messages arrive: blocks enter the digests of what was prepared."""
    topic, url = kafka_server.topic(), postgres_server.create_database()
    rows = [(None, b'{"id": %d, "x": "%s"}' % (i, os.urandom(400).hex().encode())) for i in range(9_000)]
    kafka_server.send(topic, rows)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int, x text)")
        own = {"servers": kafka_server.servers, "topics": topic, "readFromBeginning": "true"}
        lab.pipeline(
            connectors=[
                {"id": "in", "type": "source", "plugin": "kafka", "settings": own},
                {"id": "out", "type": "destination", "plugin": "postgres", "settings": {"url": url, "table": "t"}},
            ],
            processors=[processor("decode", "json.decode", field=".Payload.After")],
            delivery={"strategy": "exactly-once"},
        )
        with crashing("after-prepare"):
            lab.run()
        shutil.rmtree(lab.root / ".conduit" / "staging")
        assert lab.run().error is None
        assert connection.execute("SELECT count(*), count(DISTINCT id) FROM t").fetchone() == (9_000, 9_000)
