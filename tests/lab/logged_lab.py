"""Pipelines whose steps are logged, and sources whose records are more than text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lab.support import DECODE, Lab, destination, queue, source

ROWS = [{"i": i, "t": "ü" * (i % 5)} for i in range(70)]
PLUGIN = """
from conduit_dagster.sdk import ConnectorSettings, Keys, Source, Split
from conduit_dagster.connectors.file.destination import FileDestination
from conduit_dagster.record import Record


class Counting(Source):
    name = "counting"
    Settings = ConnectorSettings
    first = 0

    def initial(self):
        return 0

    def latest(self, start, limit, horizon=None):
        return min(70, start + limit.records)

    def split(self, start, end, n):
        middle = (start + end) // 2
        halves = (start, middle), (middle, end)
        return [Split(low, low - start, high - low, detail={"to": high}) for low, high in halves]

    def read(self, split, options):
        yield [self.record(i) for i in range(split.start + self.first, split.detail["to"])]

    def record(self, i):
        # JSON makes null of what is not a number
        values = {"i": i, "tenth": i / 10, "large": 2**53 + i, "none": float("nan") if i % 7 else None, "list": [i, {}]}
        return Record(i + 1, {"n": str(i)}, values, {"k": i})

    @property
    def unit(self):
        return {"plugin": self.name}


class Miscounting(Counting):
    name = "miscounting"
    first = 1


class Few(Counting):
    name = "few"

    def read(self, split, options):
        for first in range(split.start, split.detail["to"], 3):
            yield [self.record(i) for i in range(first, min(first + 3, split.detail["to"]))]


class Objects(FileDestination):
    name = "objects"

    def __init__(self, settings, context):
        super().__init__(settings, context)
        self.reads_keys = Keys.OBJECTS
"""
COUNTING = {"id": "in", "type": "source", "plugin": "counting"}


def lab_in(root: Path, spark: SparkSession) -> Lab:
    lab = Lab(root, spark)
    for path in ("in.jsonl", "many/a.jsonl", "many/b.jsonl"):
        lab.write(path, ROWS)
    with (root / "many/b.jsonl").open("a") as file:
        file.write("no end yet")
    (root / "plugins").mkdir()
    (root / "plugins" / "counting.py").write_text(PLUGIN)
    return lab


def build(lab: Lab, *inputs: Any, processors: Any = (DECODE,), out: Any = None, **more: Any) -> None:
    delivery = {"log": "records", "strategy": "exactly-once", "batch-size": 30, **more.pop("delivery", {})}
    lab.pipeline(
        connectors=[*(inputs or (source(),)), out or destination()],
        processors=list(processors),
        delivery=delivery,
        **{"dead-letter-queue": queue(), **more},
    )
