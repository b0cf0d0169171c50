"""The file with all results: a run replaces those it measured and keeps the rest."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyspark

from benchmarks.bench import Bench
from benchmarks.measures import MEASURES

_FILE = "results.json"


class Results:
    """Results by measure, in order, each with the time and machine of its measurement."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / _FILE
        found: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.measures = {name: found[name] for name in MEASURES if name in found}

    def add(self, name: str, title: str, result: dict[str, Any], bench: Bench) -> None:
        """Write it at once: a later measure may fail."""
        about = {"title": title, "at": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine(bench)}
        self.measures[name] = {**about, **result}
        self.measures = {known: self.measures[known] for known in MEASURES if known in self.measures}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.measures, indent=1) + "\n")


def machine(bench: Bench) -> dict[str, Any]:
    """Return the properties that the figures depend on."""
    found: dict[str, Any] = {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "pyarrow": pyarrow.__version__,
    }
    if "database" in bench.__dict__:
        found["postgresql"] = bench.database.version
    return found
