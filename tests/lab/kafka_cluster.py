"""Three Kafka brokers for tests (KRaft): topics with three replicas, and brokers that die one by one."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from .kafka_server import KafkaServer, metadata_of, read_topic
from .maven_jars import NoJarsError
from .server_process import free_port
from .waiting import wait_until

_NODES = (1, 2, 3)
_NODE = """
node.id={node}
controller.quorum.voters={voters}
listeners=PLAIN://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAIN://127.0.0.1:{port}
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
default.replication.factor=3
min.insync.replicas=2
replica.lag.time.max.ms=3000
"""


class _Node(KafkaServer):
    """One broker of a cluster; not started before the others are made."""

    def start(self) -> None:
        """Do nothing: its quorum needs the others. :meth:`begin` starts it."""

    def begin(self) -> None:
        """Start it, and wait until it answers."""
        super().start()


def _knows(server: str, topic: str) -> bool:
    """Return whether this broker knows the topic: a new client asks the one that it is given."""
    found = metadata_of(AdminClient({"bootstrap.servers": server, "log_level": 0}), topic).topics.get(topic)
    return found is not None and bool(found.partitions)


class KafkaCluster:
    """Three brokers; call ``close`` at the end."""

    def __init__(self, more: str = "") -> None:
        ports = {node: (free_port(), free_port()) for node in _NODES}
        voters = ",".join(f"{node}@127.0.0.1:{controller}" for node, (_, controller) in ports.items())
        self.nodes: dict[int, _Node] = {}
        self._dead = set(_NODES)
        try:
            for node, (port, controller) in ports.items():
                own = _NODE.format(node=node, voters=voters, port=port, controller=controller)
                self.nodes[node] = _Node(own + more, heap="200m")
                self.nodes[node].port = port
            self.mend()
        except BaseException:
            self.close()
            raise

    @property
    def servers(self) -> str:
        """The bootstrap servers."""
        return ",".join(one.servers for one in self.nodes.values())

    @cached_property
    def admin(self) -> AdminClient:
        """Admin client of the tests."""
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0, "reconnect.backoff.max.ms": 200})

    def kill(self, *nodes: int) -> None:
        """Kill brokers, like crashes."""
        for node in nodes:
            self.nodes[node].kill()
            self._dead.add(node)

    def mend(self) -> None:
        """Start the brokers that are dead, side by side, and wait until all are in sync."""
        if self._dead:
            with ThreadPoolExecutor(len(self._dead)) as pool:
                list(pool.map(lambda node: self.nodes[node].begin(), self._dead))
            self._dead.clear()
        wait_until(self._is_whole, "all replicas are in sync")

    def _is_whole(self) -> bool:
        found = metadata_of(self.admin)
        parts = [part for topic in found.topics.values() for part in topic.partitions.values()]
        return len(found.brokers) == len(_NODES) and all(len(one.isrs) == len(one.replicas) for one in parts)

    def revive(self, node: int) -> None:
        """Start one dead broker."""
        self.nodes[node].begin()
        self._dead.discard(node)

    def topic(
        self, partitions: int = 1, replicas: int = 3, lead: int = 0, on: Sequence[int] = (), **config: str
    ) -> str:
        """Create a topic; names of configs have underscores for dots. ``lead``: the broker that leads it; ``on``: the
        brokers that have it, the one that leads it first."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        name = f"t-{secrets.token_hex(6)}"
        brokers = list(on) or sorted(_NODES, key=lambda node: node != lead)
        is_placed = bool(lead or on)
        placed: Any = {"replica_assignment": [brokers] * partitions} if is_placed else {"replication_factor": replicas}
        made = self.admin.create_topics([NewTopic(name, partitions, config=settings, **placed)])
        made[name].result(60)
        wait_until(lambda: all(self.leader(name, number) > 0 for number in range(partitions)), f"{name} has leaders")
        up = [one.servers for node, one in self.nodes.items() if node not in self._dead]
        wait_until(lambda: all(_knows(server, name) for server in up), f"all brokers know {name}")
        return name

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the broker that leads a partition; -1 if there is none."""
        found = metadata_of(self.admin, topic).topics[topic].partitions
        return found[partition].leader if partition in found else -1

    def read(self, topic: str) -> list[Message]:
        """Consume the committed messages of a topic."""
        return read_topic(self.servers, topic)

    def close(self) -> None:
        """Stop the brokers and remove their data."""
        for one in self.nodes.values():
            one.close()


@contextmanager
def running_cluster(more: str = "") -> Generator[KafkaCluster]:
    """Run three brokers within the context; skip the test if Kafka's jars are not available."""
    try:
        cluster = KafkaCluster(more)
    except NoJarsError as error:
        pytest.skip(f"no Kafka: {error}")
    try:
        yield cluster
    finally:
        cluster.close()
