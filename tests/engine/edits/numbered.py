"""A source for the project's ``plugins/`` whose positions are plain numbers, as the offsets of a log are.

It reads the lines of ``ROOT/DATA.jsonl``, and writes its acks to ``ROOT/DATA.acks``; another ``data`` means other data.
Two of them share ranges such as 0 to 3: a delivery hash that does not tell them apart loses records at a destination
that knows its hashes.
"""

from __future__ import annotations

from typing import Any

from lab.support import Lab

_TEXT = '''
import json
from pathlib import Path

from conduit_dagster.sdk import ConnectorSettings, Source, Split
from conduit_dagster.record import Record


class NumberedSettings(ConnectorSettings):
    data: str


class Numbered(Source):
    """A position is the number of records before it."""

    name = "numbered"
    Settings = NumberedSettings
    identity_settings = ("data",)

    def _lines(self):
        return Path(self.context.resolve(f"{self.settings.data}.jsonl")).read_text().splitlines()

    def initial(self):
        return 0

    def latest(self, start, limit, horizon=None):
        return max(start, min(len(self._lines()), start + limit.records))

    def split(self, start, end, n):
        return [Split(start, 0, end - start, detail={"to": end})]

    def read(self, split, options):
        lines = self._lines()
        yield [Record(i + 1, {}, json.loads(lines[i])) for i in range(split.start, split.detail["to"])]

    def ack(self, upto, generation):
        with Path(self.context.resolve(f"{self.settings.data}.acks")).open("a") as file:
            file.write(f"{upto}\\n")
'''


def install(lab: Lab) -> None:
    """Add the plugin to the project."""
    lab.write("plugins/numbered.py", [_TEXT])


def numbered(data: str) -> dict[str, Any]:
    """The source called ``in``."""
    return {"id": "in", "type": "source", "plugin": "numbered", "settings": {"data": data}}
