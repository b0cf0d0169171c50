"""A source for the project's ``plugins/`` that counts, and keeps what it was acked in ``ROOT/acks.json``."""

from __future__ import annotations

from typing import Any

MONOTONE = "generation > known[0] or (generation == known[0] and upto >= known[1])"
"""The rule of an ack (DELIVERY.md, Done): a lower one, or one of an older generation, is ignored by the source."""

_TEXT = '''
import json
from pathlib import Path

from conduit_dagster.sdk import ConnectorSettings, Source, Split
from conduit_dagster.record import Record


class CounterSettings(ConnectorSettings):
    upto: int
    salt: str = ""


class Counter(Source):
    """Counts from 1. Its position is the last number."""

    name = "counter"
    Settings = CounterSettings
    identity_settings = ("salt",)

    def initial(self):
        return 0

    def latest(self, start, limit, horizon=None):
        return min(self.settings.upto, start + limit.records)

    def split(self, start, end, n):
        return [Split(start, 0, end - start, detail={"to": end})]

    def read(self, split, options):
        yield [Record(i, {}, {"i": i}) for i in range(split.start + 1, split.detail["to"] + 1)]

    def ack(self, upto, generation):
        file = Path(self.context.resolve("acks.json"))
        known = json.loads(file.read_text()) if file.exists() else [0, 0]
        if RULE:
            file.write_text(json.dumps([generation, upto]))
'''


def text(rule: str) -> str:
    """The plugin, with the condition under which an ack counts."""
    return _TEXT.replace("RULE", rule)


def counter(upto: int, salt: str = "") -> dict[str, Any]:
    """A source of the records 1 to ``upto``; another salt means other data."""
    return {"id": "in", "type": "source", "plugin": "counter", "settings": {"upto": str(upto), "salt": salt}}
