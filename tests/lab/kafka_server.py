"""A real Kafka broker for tests: one process (KRaft), with its own controller, data folder and port."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, OffsetSpec
from confluent_kafka.cimpl import NewPartitions, NewTopic

from .freezing import frozen
from .kafka_listeners import Listener
from .maven_jars import JarSet, NoJarsError, java
from .server_process import free_port, guard_of
from .waiting import wait_until

Row = tuple[bytes | None, bytes | None]
_PATIENCE = 90
"""Seconds for an answer of a busy broker."""
_NO_ANSWER = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
_WITHOUT_LEADER = (KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION)
VERSION = "4.1.0"
JARS = JarSet(
    f"kafka-{VERSION}", (("org.apache.kafka", "kafka_2.13", VERSION), ("org.slf4j", "slf4j-simple", "1.7.36")), 45
)
"""Kafka's jars. ``CONDUIT_KAFKA_JARS`` overrides their folder."""
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAIN://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{more_listeners}
advertised.listeners=PLAIN://127.0.0.1:{port}{more_listeners}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAIN
listener.security.protocol.map=PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT{more_protocols}
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
default.replication.factor=1
num.partitions=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=4194304
log.cleaner.backoff.ms=200
log.cleaner.delete.retention.ms=1000
log.retention.check.interval.ms=500
log.initial.task.delay.ms=500
log.segment.delete.delay.ms=100
auto.create.topics.enable=false
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=200
{more}
"""


class KafkaServer:
    """One broker on loopback; call ``close`` at the end.

    ``scram``: users and passwords for SCRAM, stored when the broker is formatted.
    """

    def __init__(
        self, more: str = "", listeners: Sequence[Listener] = (), scram: Mapping[str, str] | None = None,
        heap: str = "256m",
    ) -> None:  # fmt: skip
        self._heap = heap
        self._jars = JARS.folder(os.environ.get("CONDUIT_KAFKA_JARS"))
        self._folder = Path(tempfile.mkdtemp(prefix="conduit-kafka-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self.port, controller = free_port(), free_port()
        self._ports = {one.name: free_port() for one in listeners}
        self._write("server.properties", _PROPERTIES.format(
            port=self.port, controller=controller, data=self._folder / "data",
            more_listeners="".join(f",{name}://127.0.0.1:{port}" for name, port in self._ports.items()),
            more_protocols="".join(f",{one.name}:{one.protocol}" for one in listeners),
            more="\n".join([more, *(one.properties for one in listeners)]),
        ))  # fmt: skip
        try:
            self._format(scram or {})
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def servers(self) -> str:
        """The bootstrap servers."""
        return f"127.0.0.1:{self.port}"

    def at(self, listener: str) -> str:
        """Return the address of an additional listener."""
        return f"127.0.0.1:{self._ports[listener]}"

    def start(self) -> None:
        """Start the broker, with its existing data, and wait until it responds."""
        self._process = self._java("kafka.Kafka", str(self._folder / "server.properties"))
        self._guard = guard_of(self._process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 200
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka did not start:\n{self._log.read_text()[-3000:]}")

    def stop(self) -> None:
        """Stop the broker gracefully."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker, like a crash."""
        self._end(signal.SIGKILL)

    @contextmanager
    def frozen(self) -> Generator[None]:
        """Freeze the broker within the context: requests are neither answered nor refused until it ends."""
        assert self._process is not None
        with frozen(self._process.pid):
            yield
        wait_until(self._answers, "the broker answers again")

    def close(self) -> None:
        """Stop the broker and remove its data."""
        try:
            self.kill()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- topics -------------------------------------------------------------------------------------------------

    @cached_property
    def admin(self) -> AdminClient:
        """Admin client of the tests. It is kept, because its pending requests are aborted with it."""
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0, "reconnect.backoff.max.ms": 200})

    def topic(self, partitions: int = 1, name: str = "", **config: str) -> str:
        """Create a topic, by default with a unique name; names of configs have underscores for dots."""
        return create_topic(self.servers, name or f"t-{secrets.token_hex(6)}", partitions, **config)

    def delete(self, topic: str) -> None:
        """Delete a topic and wait until it is gone."""
        admin = self.admin
        admin.delete_topics([topic])[topic].result(_PATIENCE)
        wait_until(lambda: topic not in metadata_of(admin).topics, f"{topic} is gone")

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records before an offset, as retention does."""
        found = self.admin.delete_records([TopicPartition(topic, partition, offset)])
        for future in found.values():
            future.result(_PATIENCE)

    def grow(self, topic: str, partitions: int) -> None:
        """Increase the partitions of a topic to ``partitions``."""
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(_PATIENCE)

    def limit(self, client: str, **quotas: int) -> None:
        """Set quotas of a client id, such as ``producer_byte_rate``."""
        limits = ",".join(f"{name}={value}" for name, value in quotas.items())
        words = ["--bootstrap-server", self.servers, "--alter", "--entity-type", "clients", "--entity-name", client]
        if self._java("kafka.admin.ConfigCommand", *words, "--add-config", limits).wait(200) != 0:
            raise RuntimeError(f"no quota could be set:\n{self._log.read_text()[-3000:]}")

    # -- records ------------------------------------------------------------------------------------------------

    def send(self, topic: str, rows: Sequence[Row], partition: int = -1, **more: Any) -> None:
        """Produce keys and values, and wait for their acks."""
        # idempotent: while a busy broker is fenced, batches are sent again, which otherwise could swap or repeat them
        config = {"bootstrap.servers": self.servers, "partitioner": "murmur2_random", "enable.idempotence": True}
        producer = Producer(config)
        for key, value in rows:
            producer.produce(topic, value, key, partition, **more)
            producer.poll(0)
        assert producer.flush(_PATIENCE) == 0

    def send_to_each(self, topic: str, value: bytes, partitions: int) -> None:
        """Produce one message to each partition, and wait for their acks."""
        producer = Producer({"bootstrap.servers": self.servers})
        for partition in range(partitions):
            producer.produce(topic, value, partition=partition)
        assert producer.flush(_PATIENCE) == 0

    def transaction(self, topic: str, rows: Sequence[Row], partition: int = 0, commit: bool = True) -> None:
        """Produce keys and values in a transaction, then commit or abort it."""
        producer, known = self._transactional, self._end_of(topic, partition)
        producer.begin_transaction()
        for key, value in rows:
            producer.produce(topic, value, key, partition)
        producer.flush(_PATIENCE)
        (producer.commit_transaction if commit else producer.abort_transaction)(_PATIENCE)
        # brokers answer before they write the mark that ends it
        ends_at = known + len(rows) + bool(rows)
        wait_until(lambda: self._end_of(topic, partition) >= ends_at, "the transaction has its mark")

    def _end_of(self, topic: str, partition: int) -> int:
        return _end_offset(self.admin, topic, partition)

    @cached_property
    def _transactional(self) -> Producer:
        config = {"bootstrap.servers": self.servers, "transactional.id": "tests", "linger.ms": 0, "log_level": 0}
        producer = Producer(config)
        producer.init_transactions(_PATIENCE)
        return producer

    def read(self, topic: str, isolation: str = "read_committed") -> list[Message]:
        """Consume a topic, partition by partition, up to the end of each."""
        return read_topic(self.servers, topic, isolation)

    def values(self, topic: str, isolation: str = "read_committed") -> list[Any]:
        """Consume a topic and return the values, decoded from JSON."""
        return [json.loads(one.value() or b"null") for one in self.read(topic, isolation)]

    # -- the process --------------------------------------------------------------------------------------------

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)

    def _format(self, scram: Mapping[str, str]) -> None:
        words = ["format", "-t", "kYbCRGdTQ6Ox3YN0k4wB7Q", "-c", str(self._folder / "server.properties")]
        for user, password in scram.items():
            for kind in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                words += ["--add-scram", f"{kind}=[name={user},password={password}]"]
        if self._java("kafka.tools.StorageTool", *words).wait(200) != 0:
            raise RuntimeError(f"the folder could not be formatted:\n{self._log.read_text()[-3000:]}")

    def _java(self, main: str, *words: str) -> subprocess.Popen[bytes]:
        options = [f"-Xmx{self._heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
        command = [
            java(),
            *options,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            f"{self._jars}/*",
            main,
            *words,
        ]
        with self._log.open("ab") as log:
            # a separate session: Ctrl-C in the terminal must only reach the tests, which stop the broker themselves
            return subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log, start_new_session=True)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1):
                pass
            return bool(self.admin.list_topics(timeout=3).brokers)
        except Exception:  # noqa: BLE001  # it is not up yet, however it says so
            time.sleep(0.05)
            return False

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait(120)
            self._process = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None


@contextmanager
def running_kafka(*words: Any, **more: Any) -> Generator[KafkaServer]:
    """Run a broker within the context; skip the test if Kafka's jars are not available."""
    try:
        server = KafkaServer(*words, **more)
    except NoJarsError as error:
        pytest.skip(f"no Kafka: {error}")
    try:
        yield server
    finally:
        server.close()


def create_topic(servers: str, name: str, partitions: int = 1, **config: str) -> str:
    """Create a topic; names of configs have underscores for dots, and configs without a value are left out."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    _create(admin, name, partitions, config)
    wait_until(lambda: _has_leaders(admin, name, partitions), f"{name} has leaders")
    return name


def metadata_of(client: AdminClient | Consumer, topic: str | None = None) -> ClusterMetadata:
    """Return the cluster's topics, or a single one; a broker that is too busy to answer is asked again."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return client.list_topics(topic, 10)
        except KafkaException as error:
            if error.args[0].code() not in _NO_ANSWER or time.monotonic() > deadline:
                raise


def _has_leaders(admin: AdminClient, name: str, partitions: int) -> bool:
    found = metadata_of(admin, name).topics[name].partitions
    return len(found) == partitions and all(one.leader >= 0 for one in found.values())


def _create(admin: AdminClient, name: str, partitions: int, config: Mapping[str, str]) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items() if value}
    deadline, maybe_made = time.monotonic() + _PATIENCE, False
    while True:
        try:
            # after a freeze, a broker may leave a request without an answer, and answer the next one
            created = admin.create_topics([NewTopic(name, partitions, 1, config=settings)], request_timeout=10)
            created[name].result(_PATIENCE)
            return
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_ALREADY_EXISTS and maybe_made:
                return
            # a broker that misses heartbeats on a busy machine is fenced for a moment
            if code not in (*_NO_ANSWER, KafkaError.INVALID_REPLICATION_FACTOR) or time.monotonic() > deadline:
                raise
            # the answer may merely be late
            maybe_made = maybe_made or code in _NO_ANSWER
            admin.poll(0.1)


def read_topic(servers: str, topic: str, isolation: str = "read_committed") -> list[Message]:
    """Consume a topic, partition by partition, up to the end of each."""
    consumer = Consumer({
        "bootstrap.servers": servers, "group.id": f"g-{secrets.token_hex(6)}", "enable.auto.commit": False,
        "isolation.level": isolation, "enable.partition.eof": True, "fetch.wait.max.ms": 20,
        "auto.offset.reset": "earliest",
    })  # fmt: skip
    found: list[Message] = []
    try:
        metadata = metadata_of(consumer, topic).topics[topic]
        for partition in sorted(metadata.partitions):
            if isolation == "read_committed":
                _await_markers(servers, topic, partition)
            consumer.assign([TopicPartition(topic, partition, 0)])
            found += _until_end(consumer)
    finally:
        consumer.close()
    return found


def _await_markers(servers: str, topic: str, partition: int, longest: float = 10.0) -> None:
    """Wait until no transaction is open: the broker marks one as committed a moment after the commit was answered.

    One that a test leaves open is waited for in vain.
    """
    admin = AdminClient({"bootstrap.servers": servers})
    levels = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    deadline = time.monotonic() + longest
    while time.monotonic() < deadline:
        if len({_end_offset(admin, topic, partition, level) for level in levels}) == 1:
            return
        time.sleep(0.01)


def _end_offset(
    admin: AdminClient, topic: str, partition: int, level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
) -> int:
    asked, deadline = TopicPartition(topic, partition), time.monotonic() + _PATIENCE
    while True:
        try:
            found = admin.list_offsets({asked: OffsetSpec.latest()}, isolation_level=level)[asked]
            return found.result(_PATIENCE).offset
        except KafkaException as error:
            # a busy broker that was fenced for a moment leads no partition
            if error.args[0].code() not in (*_WITHOUT_LEADER, *_NO_ANSWER) or time.monotonic() > deadline:
                raise
            admin.poll(0.1)


def _until_end(consumer: Consumer) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for message in consumer.consume(1_000, 0) or consumer.consume(1, 1):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
    raise TimeoutError("the partition has no end")
