"""A pipeline that does the benchmark's work: read, four operations, write; broken lines to the dead letters."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

_AFTER = ".Payload.After"
_PROCESSORS: list[dict[str, Any]] = [
    {"id": "decode", "plugin": "json.decode", "settings": {"field": _AFTER}},
    {
        "id": "cents",
        "plugin": "field.set",
        "settings": {"field": f"{_AFTER}.cents", "expression": "after.amount * 100"},
    },
    {"id": "rename", "plugin": "field.rename", "settings": {"mapping": f"{_AFTER}.name:fullname"}},
    {"id": "drop", "plugin": "field.exclude", "settings": {"fields": f"{_AFTER}.note"}},
]


@dataclass(frozen=True)
class Setup:
    """Properties in which the measured pipelines differ."""

    destinations: Sequence[dict[str, Any]]
    strategy: str = "at-least-once"
    log: str = "positions"
    in_flight: int = 1
    batch: int | None = None
    """Records per batch; None: the default."""
    more: Sequence[dict[str, Any]] = ()
    """Processors after those that do the work."""

    def write(self, root: Path, source: Path) -> None:
        """Create a fresh project with this pipeline, which reads ``source``."""
        shutil.rmtree(root, ignore_errors=True)
        delivery = {"strategy": self.strategy, "log": self.log, "max-in-flight": self.in_flight}
        inputs = {"id": "in", "type": "source", "plugin": "builtin:file", "settings": {"path": str(source)}}
        queue = {"plugin": "builtin:file", "settings": {"path": "./dead.jsonl"}, "window-size": 0}
        pipeline = {
            "id": "bench",
            "trigger": "available-now",
            "delivery": delivery if self.batch is None else {**delivery, "batch-size": self.batch},
            "connectors": [inputs, *self.destinations],
            "processors": [*_PROCESSORS, *self.more],
            "dead-letter-queue": queue,
        }
        write_pipeline(root, pipeline)


def to_file(name: str, layout: str) -> dict[str, Any]:
    """Return a destination of plain payload lines in one ordered file, or a folder of parts, named ``name``."""
    settings = {"path": f"./{name}", "layout": layout, "sdk.record.format": "payload/json"}
    return {"id": name, "type": "destination", "plugin": "builtin:file", "settings": settings}


def to_table(name: str, url: str) -> dict[str, Any]:
    """Return a destination of rows in a table named ``name``."""
    settings = {"url": url, "table": name}
    return {"id": name, "type": "destination", "plugin": "builtin:postgres", "settings": settings}


def write_pipeline(root: Path, pipeline: Mapping[str, Any]) -> None:
    """Write the only pipeline file of a project."""
    (root / "pipelines").mkdir(parents=True, exist_ok=True)
    with (root / "pipelines" / "bench.yaml").open("w") as file:
        YAML().dump({"version": "2.2", "pipelines": [pipeline]}, file)


KINDS = ("file at least once", "file exactly once", "file exactly once, log: records", "postgres exactly once")
"""The pipelines whose smallest step and memory are measured."""
TABLE = "out0"


def needs_database(kind: str) -> bool:
    """Return whether :func:`setup_of` needs a database URL."""
    return kind.startswith("postgres")


def setup_of(kind: str, url: str = "", batch: int | None = None) -> Setup:
    """Return one of :data:`KINDS`; ``url``: of the database with the table :data:`TABLE`."""
    strategy = "at-least-once" if "at least once" in kind else "exactly-once"
    log = "records" if "records" in kind else "positions"
    destination = to_table(TABLE, url) if needs_database(kind) else to_file("out", "file")
    return Setup([destination], strategy, log, batch=batch)
