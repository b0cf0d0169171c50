"""Kafka sources and destinations on a broker, used without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conduit_dagster.connectors.kafka.destination import KafkaDestination
from conduit_dagster.connectors.kafka.settings import KafkaDestinationSettings, KafkaSourceSettings
from conduit_dagster.connectors.kafka.source import KafkaSource
from conduit_dagster.expressions import Clock
from conduit_dagster.record import Record
from conduit_dagster.sdk import ConnectorContext, Delivery, Limit, Position, ReadOptions, Refusal, WriterTask
from lab.kafka_server import KafkaServer

ALL = Limit(10**9, 10**12)
ROWS = [(b"k%d" % i, b"%d" % i) for i in range(10)]
"""Messages for a topic."""
BY_COLLECTION = '{{ index .Metadata "opencdc.collection" }}'
"""Setting ``topic`` of a destination whose records name their topics."""


class KafkaLab:
    """Factory of sources, destinations and deliveries. The hash of a delivery is its step number."""

    def __init__(self, server: KafkaServer, root: Path) -> None:
        self.server, self.root = server, root
        self.steps = 0
        self.refused: list[Refusal] = []

    # -- source -------------------------------------------------------------------------------------------------

    def source(self, topics: str, **settings: Any) -> KafkaSource:
        """Create a source, by default from the earliest offset."""
        given = {key.replace("_", "-"): value for key, value in settings.items()}
        values = {"servers": self.server.servers, "topics": topics, "start-from": "earliest", **given}
        model = KafkaSourceSettings.model_validate(values)
        return KafkaSource(model, ConnectorContext("p", "in", str(self.root), Clock(7)))

    def step(self, source: KafkaSource, start: Position, limit: int = 10**9) -> tuple[Position, list[Record]]:
        """Plan and read one step; return its end position and records."""
        end = source.latest(start, Limit(limit, 10**12))
        found = self.read(source, start, end)
        source.verify(start, end)
        return end, found

    def read(self, source: KafkaSource, start: Position, end: Position) -> list[Record]:
        """Read a range with two tasks' splits."""
        splits = source.split(start, end, 2)
        return [record for split in splits for block in source.read(split, ReadOptions()) for record in block.records]

    def values(self, source: KafkaSource, start: Position) -> list[bytes | None]:
        """Return the payloads of one step."""
        return [record.after for record in self.step(source, start)[1]]  # type: ignore[misc]

    # -- destination --------------------------------------------------------------------------------------------

    def destination(self, topic: str, pipeline: str = "p", strategy: Any = "exactly-once", **settings: Any) -> Any:
        """Create a destination, by default of plain payloads."""
        given = {key.replace("_", "-"): value for key, value in settings.items()}
        values = {
            "servers": self.server.servers,
            "topic": topic,
            "sdk.record.format": "payload/json",
            "transactional-id": f"x-{topic}" if "{" not in topic else f"x-{self.root.name}",
            **given,
        }
        context = ConnectorContext(pipeline, "out", str(self.root), Clock(7), strategy)
        return KafkaDestination(KafkaDestinationSettings.model_validate(values), context)

    def stage(self, destination: KafkaDestination, *tasks: Sequence[Record], block: int = 1_000) -> Delivery:
        """Stage a delivery with one part per task; refusals are added to ``refused``."""
        self.steps += 1
        return self.stage_as(self.steps, destination, *tasks, block=block)

    def deliver(self, destination: KafkaDestination, records: Sequence[Record]) -> None:
        """Stage and publish a delivery."""
        destination.publish(self.stage(destination, records))

    def stage_as(
        self, step: int, destination: KafkaDestination, *tasks: Sequence[Record], block: int = 1_000
    ) -> Delivery:
        """Stage a delivery as in :meth:`stage`, for a given step."""
        staging, parts = str(self.root / f"staging/{step}"), []
        for index, records in enumerate(tasks):
            writer = destination.writer(WriterTask(staging, index, f"t{index}"))
            for start in range(0, len(records), block):
                self.refused += writer.write(list(records[start : start + block]))
            part = writer.finish()
            parts += [part] if part else []
        return Delivery(f"{step:064x}", step, "out", staging, tuple(parts), {})


def child(delivery: Delivery, skip: int, take: int = 1) -> Delivery:
    """Return a child of a delivery: a range of its records, with its own hash."""
    return replace(delivery, hash=f"{delivery.hash}:{skip}:{take}", skip=skip, take=take)


def numbered(count: int, **metadata: str) -> list[Record]:
    """Return ``count`` records ``{"i": n}`` with the key ``n % 7``."""
    return [Record(n, dict(metadata), {"i": n}, b"%d" % (n % 7)) for n in range(count)]
