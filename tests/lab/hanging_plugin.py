"""A source and destinations that hang if a file such as ``hang-publish`` exists in the project's folder.

They create ``hangs`` there when they do, and continue when the file is removed, or after ten minutes.
"""

from __future__ import annotations

from typing import Any

HANGING = '''
import time
from pathlib import Path

from conduit_dagster.sdk import ConnectorSettings, Rejected, Source, Split, StagedDestination
from conduit_dagster.sdk.staging import StagedWriter, staged_lines
from conduit_dagster.record import Nack, Record, encode


def hang(connector, point):
    """Until the file is gone, ten minutes at most."""
    root = Path(connector.context.root)
    if not (root / f"hang-{point}").exists():
        return
    (root / "hangs").touch()
    end = time.monotonic() + 600
    while time.monotonic() < end and (root / f"hang-{point}").exists():
        time.sleep(0.02)


class Settings(ConnectorSettings):
    path: str = "held.txt"


class Lines:
    def encode_block(self, records):
        return b"".join(encode(record) + b"\\n" for record in records), []


class Holding(StagedDestination):
    """Keeps each delivery in a file of its own, by hash. Its divisible twin refuses the number 3."""

    name = "holding"
    Settings = Settings
    strategies = frozenset({"exactly-once", "at-least-once"})

    def check(self):
        hang(self, "check")

    def writer(self, task):
        return StagedWriter(task, Lines())

    def _file(self, delivery):
        return Path(self.context.resolve(self.settings.path + "-" + delivery.hash))

    def holds(self, delivery):
        hang(self, "holds")
        return self._file(delivery).exists()

    def publish(self, delivery):
        hang(self, "publish")
        self._file(delivery).write_bytes(b"".join(staged_lines(delivery)))
        return delivery.target


class Refusing(Holding):
    name = "refusing"
    divisible = True

    def publish(self, delivery):
        for place, line in enumerate(staged_lines(delivery)):
            if b'"i":3' in line:
                raise Rejected(place, Nack("three", "no 3"))
        return super().publish(delivery)

    def claim(self, delivery, state):
        hang(self, "claim")
        return state


class Counting(Source):
    name = "counting"
    Settings = Settings

    def initial(self):
        return 0

    def latest(self, start, limit, horizon=None):
        hang(self, "latest")
        return max(start, 5)

    def split(self, start, end, n):
        return [Split(start, 0, end - start)]

    def read(self, split, options):
        yield [Record(i + 1, {}, {"i": i}) for i in range(split.start, 5)]

    def ack(self, upto, generation):
        hang(self, "ack")
        with Path(self.context.root, "acks").open("a") as file:
            file.write(f"{upto}\\n")

    def lag(self, position):
        hang(self, "lag")
        return 5 - position

    def close(self):
        hang(self, "close")
        with Path(self.context.root, "acks").open("a") as file:
            file.write("closed\\n")
'''
HOLDING: dict[str, Any] = {"id": "out", "type": "destination", "plugin": "holding", "settings": {}}
"""Keeps each delivery in a file ``held.txt-HASH``; ``refusing`` instead of ``holding`` refuses the number 3."""
COUNTING: dict[str, Any] = {"id": "in", "type": "source", "plugin": "counting", "settings": {}}
"""Source of the numbers 0 to 4."""
