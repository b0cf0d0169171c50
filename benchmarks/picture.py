"""The results as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Bars of records per second, ours beside plain Spark, the ratio above."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.5))
    places = range(len(results))
    for shift, name, colour in ((-0.2, "ours", "#3b6ea5"), (0.2, "plain", "#c9c9c9")):
        rates = [result["records_per_second"][name] / 1000 for result in results]
        axes.bar([p + shift for p in places], rates, 0.4, label=name, color=colour)
    for place, result in zip(places, results, strict=True):
        top = max(result["records_per_second"].values()) / 1000
        axes.text(place, top * 1.02, f"{result['ratio_to_plain']:.2f}", ha="center")
    axes.margins(y=0.12)
    labels = [f"{r['records'] // 1_000_000}M, {r['destinations']} dest.\n{r['layout']}" for r in results]
    axes.set_xticks(list(places), labels)
    axes.set_ylabel("thousand records per second")
    axes.set_title("conduit_dagster beside plain Spark (ratio above the bars)")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)
