"""File destinations and staged deliveries for tests, without an engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conduit_dagster.connectors.file.destination import FileDestination
from conduit_dagster.connectors.file.settings import FileDestinationSettings
from conduit_dagster.expressions import Clock
from conduit_dagster.record import Record
from conduit_dagster.sdk import ConnectorContext, Delivery, Strategy, WriterTask
from lab.kills import Crash, hooked


def make(root: Path, path: str = "out.jsonl", strategy: Strategy = "at-least-once", **settings: str) -> FileDestination:
    """Return a destination of plain payload lines."""
    values = {"path": path, "sdk.record.format": "payload/json", **settings}
    context = ConnectorContext("p", "out", str(root), Clock(), strategy)
    return FileDestination(FileDestinationSettings.model_validate(values), context)


def stage(
    destination: FileDestination, root: Path, step: int, tasks: Sequence[Sequence[int]], skip: int = 0
) -> Delivery:
    """Return a delivery of documents without a target, one part per task."""
    staging = destination.staging(str(root / "staging")) + f"/{step:012d}-{skip}-token/out"
    parts = []
    for index, numbers in enumerate(tasks):
        writer = destination.writer(WriterTask(staging, index, f"t{index}"))
        assert list(writer.write([Record(i, {}, {"i": i}) for i in numbers])) == []
        part = writer.finish()
        assert part is not None
        parts.append(part)
    name = hashlib.sha256(f"{step} {skip}".encode()).hexdigest()
    return Delivery(name, step, "out", staging, tuple(parts), {}, skip)


def prepared(delivery: Delivery, target: dict[str, Any]) -> Delivery:
    """Return the delivery with its target, both after a round trip through the state store."""
    return replace(delivery, target=json.loads(json.dumps(target)))


def rows(path: Path) -> list[int]:
    """Return the numbers of the documents in a file, ignoring empty lines."""
    return [json.loads(line)["i"] for line in path.read_text().splitlines() if line]


@contextmanager
def killed_mid_publish() -> Iterator[None]:
    """Crash the first publish inside in its middle."""

    def die(point: str, pipeline: str) -> None:
        assert (point, pipeline) == ("mid-publish", "p")
        raise Crash

    with pytest.raises(Crash), hooked(die):
        yield


def next_one(
    destination: FileDestination, root: Path, step: int, tasks: list[list[int]], previous: Any
) -> tuple[Delivery, dict[str, Any]]:
    """Return a prepared delivery, and the stored target of the next one."""
    delivery = prepared(stage(destination, root, step, tasks), destination.target(previous))
    return delivery, json.loads(json.dumps(destination.expected(delivery)))


def publish_some(destination: FileDestination, delivery: Delivery) -> None:
    """Publish half of it, then crash."""
    with killed_mid_publish():
        destination.publish(delivery)
