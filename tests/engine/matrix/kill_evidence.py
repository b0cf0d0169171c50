"""What the state store says of pipelines: right after a kill, and at their end."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import sqlalchemy as sa
from engine.matrix.kill_scenarios import FIRST

from conduit_dagster.state.database import reading
from conduit_dagster.state.steps import Decision, Plan
from conduit_dagster.state.tables import dead_letters, deliveries, sources, steps


@dataclass(frozen=True)
class Crash:
    """A kill, and the step that it fell into, by the numbers of its source records."""

    point: str
    prepared: frozenset[int]
    """Of the step that is prepared and not done."""
    last: frozenset[int]
    """Of the newest step that is done: with at-most-once the only one that may be unpublished."""


@dataclass(frozen=True)
class Ending:
    """What is left at the end."""

    open_steps: list[int]
    open_deliveries: list[tuple[int, str, str]]
    handled: dict[str, int]
    """Records of each source that are handled end to end."""
    letters: list[int]
    """Numbers of the records in the dead-letter index."""


def crash(database: sa.Engine, pipeline: str, kill: str) -> Crash:
    """Where the kill ``point:passage`` hit."""
    mine = (steps.c.pipeline == pipeline, steps.c.state.in_(("prepared", "done")))
    with reading(database) as connection:
        rows = connection.execute(sa.select(steps).where(*mine).order_by(steps.c.step)).mappings().all()
    prepared = [_numbers(row) for row in rows if row["state"] == "prepared"]
    done = [_numbers(row) for row in rows if row["state"] == "done"]
    assert len(prepared) <= 1, f"{pipeline}: {len(prepared)} steps are between prepared and done"
    return Crash(kill.partition(":")[0], frozenset().union(*prepared), done[-1] if done else frozenset())


def _numbers(row: sa.RowMapping) -> frozenset[int]:
    plan = msgspec.json.decode(row["plan"], type=Plan)
    counts = msgspec.json.decode(row["decision"], type=Decision).sources
    begins = [
        (member, span.start[member] if "+" in span.source else span.offset, counts[span.source].read)
        for span in plan.ranges
        for member in span.source.split("+")
    ]
    return frozenset(FIRST[member] + begin + i for member, begin, read in begins for i in range(read))


def ending(database: sa.Engine, pipeline: str) -> Ending:
    """What is left."""
    with reading(database) as connection:
        unfinished = sa.select(steps.c.step).where(
            steps.c.pipeline == pipeline, steps.c.state.in_(("planned", "prepared"))
        )
        unsent = sa.select(deliveries.c.step, deliveries.c.consumer, deliveries.c.state).where(
            deliveries.c.pipeline == pipeline, deliveries.c.state.in_(("open", "split"))
        )
        stands = sa.select(sources.c.source, sources.c.records).where(sources.c.pipeline == pipeline)
        index = sa.select(dead_letters.c.source, dead_letters.c.offset).where(dead_letters.c.pipeline == pipeline)
        return Ending(
            [int(step) for step in connection.execute(unfinished).scalars()],
            [(row[0], row[1], row[2]) for row in connection.execute(unsent)],
            # a joined record is one of each source
            {row[0]: row[1] * len(row[0].split("+")) for row in connection.execute(stands)},
            sorted(FIRST[row[0]] + row[1] for row in connection.execute(index)),
        )
