"""Pipelines with ``spark:FORMAT``."""

from __future__ import annotations

from typing import Any

from lab.support import Lab, queue


def given(format_: str, **settings: str) -> dict[str, Any]:
    return {"id": "in", "type": "source", "plugin": f"spark:{format_}", "settings": settings}


def taken(format_: str, **settings: str) -> dict[str, Any]:
    return {"id": "out", "type": "destination", "plugin": f"spark:{format_}", "settings": settings}


def build(lab: Lab, source: Any, *outputs: Any, name: str = "p", **more: Any) -> None:
    lab.pipeline(
        id=name,
        connectors=[source, *outputs],
        delivery={"batch-size": 10, "strategy": "exactly-once", **more.pop("delivery", {})},
        **{"dead-letter-queue": queue(path=f"./{name}-dead.jsonl")},
        **more,
    )
