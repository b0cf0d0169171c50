"""The file with all results, and their picture: a run replaces those it measured and keeps the rest."""

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
from benchmarks.builtin_cases import PROCESSOR
from benchmarks.measures import MEASURES
from benchmarks.shapes import SIZES

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


_COLOURS = ("#3b6ea5", "#c9c9c9", "#8f8f8f")
_HEIGHT = 0.28


def draw(measures: dict[str, Any], path: Path) -> None:
    """Draw bars of records per second, ours above the alternatives, followed by the ratio; nothing without results."""
    shown = [one for name, one in measures.items() if "sides" in one and not name.startswith((PROCESSOR, SIZES))]
    if not shown:
        return
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.8 + 0.85 * len(shown)))
    for place, one in enumerate(shown):
        _group(axes, place, one)
    axes.margins(x=0.25, y=0.02)
    axes.set_yticks(range(len(shown)), [one["title"].replace(", ", ",\n", 1) for one in shown])
    axes.invert_yaxis()
    axes.set_xlabel("thousand records per second; ratio: how much faster ours is")
    axes.set_title("conduit_dagster beside plain Spark and COPY")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _group(axes: Any, place: int, one: dict[str, Any]) -> None:
    for number, (name, side) in enumerate(one["sides"].items()):
        rate, at = side["records_per_second"] / 1000, place + (number - 1) * _HEIGHT
        axes.barh(at, rate, _HEIGHT, color=_COLOURS[number])
        ratio = one["ratios"].get(name)
        axes.text(rate, at, f" {name}" if ratio is None else f" {name}: {ratio:.2f}", va="center", fontsize=8)
