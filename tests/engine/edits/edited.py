"""Pipelines that these tests edit between runs."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from lab.support import DECODE, Lab, destination, processor, queue, source

from conduit_dagster.state.tables import steps

LATE = destination("late", **{"start-from": "log"})
SEVEN = processor("bad", "error", "after.i == 7", message="no")


def build(lab: Lab, *connectors: Any, processors: Any = (), **delivery: Any) -> None:
    """An exactly-once pipeline; from ``in.jsonl`` to ``out.jsonl`` unless it is given connectors."""
    given = list(connectors or (source(), destination()))
    if all(connector["type"] == "destination" for connector in given):
        given = [source(), destination(), *given]
    lab.pipeline(
        connectors=given,
        processors=[DECODE, *processors],
        delivery={"strategy": "exactly-once", **delivery},
        **{"dead-letter-queue": queue()},
    )


def run(lab: Lab) -> int:
    """Run to the end; return how many records it read."""
    result = lab.run()
    assert result.error is None, (result.error.code, result.error.message)
    return result.progress.read


def numbers(lab: Lab, name: str = "out", field: str = "i") -> list[int]:
    return [row[field] for row in lab.documents(f"{name}.jsonl") if field in row]


def rows_of(count: int, field: str = "i", **more: Any) -> list[dict[str, Any]]:
    return [{field: i, **more} for i in range(count)]


def step_states(lab: Lab) -> list[str]:
    with lab.store() as database, database.connect() as connection:
        return list(connection.execute(sa.select(steps.c.state).order_by(steps.c.step)).scalars())
