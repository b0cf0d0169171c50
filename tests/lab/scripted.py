"""A direct destination for tests that records what it is sent and answers by a script.

The script is a JSON file that may change between runs: ``acks`` (``all``, or receipts as ``[value, "only" | "upto"]``,
returned after the batch that holds the value), ``refuse`` (values), ``bulk`` (values that fail a batch without naming a
record), ``outage`` (values), ``wait`` (a value before which it waits for the file ``go``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab.support import Lab

TEXT = """
import json
import time
from pathlib import Path

from conduit_dagster.sdk import ConnectorSettings, DirectDestination, Receipt, Sender
from conduit_dagster.record import Nack


def value_of(after):
    # a record's number; a dead letter's is that of the record in it
    return after["i"] if "i" in after else after["payload"]["after"]["i"]


class ScriptedSettings(ConnectorSettings):
    path: str
    script: str = "script.json"


class ScriptedSender(Sender):
    def __init__(self, destination, task):
        self.out = Path(destination.context.resolve(destination.settings.path))
        self.root = Path(destination.context.root)
        self.task = task
        script = self.root / destination.settings.script
        self.script = json.loads(script.read_text()) if script.exists() else {}
        self.places = {}
        self.given = set()

    def send(self, records, first):
        values = [value_of(record.after) for record in records]
        if self.script.get("wait") in values:
            # a killed run's task that still waits ends with the test: it would hold a slot of the tests' server
            while self.root.exists() and not (self.root / "go").exists():
                time.sleep(0.02)
        keys = [list(self.task.idempotency.key_of(record)) for record in records]
        with self.out.open("a") as file:
            file.write(json.dumps({"values": values, "hash": self.task.hash, "keys": keys}) + "\\n")
        if set(values) & set(self.script.get("outage", [])):
            raise ConnectionError("the network is gone")
        if set(values) & set(self.script.get("bulk", [])):
            raise ValueError("something in it is wrong")
        self.places.update({value: first + i for i, value in enumerate(values)})
        return self._answers(values)

    def _answers(self, values):
        refused = set(self.script.get("refuse", []))
        acks = self.script.get("acks", "all")
        if acks == "all":
            if not refused & set(values):
                return None
            return [Receipt(self.places[v], Nack("scripted", f"no {v}") if v in refused else None) for v in values]
        receipts = [Receipt(self.places[v], Nack("scripted", f"no {v}")) for v in values if v in refused]
        for i, (value, kind) in enumerate(acks):
            if value in self.places and i not in self.given:
                self.given.add(i)
                receipts.append(Receipt(self.places[value], None, kind == "upto"))
        return receipts


class Scripted(DirectDestination):
    name = "scripted"
    Settings = ScriptedSettings
    batch = 100

    def sender(self, task):
        return ScriptedSender(self, task)
"""


def scripted(name: str = "out", plugin: str = "scripted", **more: Any) -> dict[str, Any]:
    """Return a scripted destination that reads ``NAME.script.json`` and writes ``NAME.sent``."""
    settings = {"path": f"{name}.sent", "script": f"{name}.script.json"}
    return {"id": name, "type": "destination", "plugin": plugin, "settings": settings, **more}


class Script:
    """Scripts and sent records, on the project's side."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        (lab.root / "plugins").mkdir(exist_ok=True)
        (lab.root / "plugins" / "scripted.py").write_text(TEXT)

    def says(self, name: str = "out", **script: Any) -> None:
        """Set the script, from the next job on."""
        (self.lab.root / f"{name}.script.json").write_text(json.dumps(script))

    def sent(self, name: str = "out") -> list[list[int]]:
        """Return the values of each batch since the last call."""
        rows = self.lab.documents(f"{name}.sent")
        Path(self.lab.root, f"{name}.sent").unlink(missing_ok=True)
        return [row["values"] for row in rows]

    def values(self, name: str = "out") -> list[int]:
        """Return the same, without their batches."""
        return [value for batch in self.sent(name) for value in batch]
