"""Detection of gaps between the offsets of a pipeline's steps."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from conduit_dagster.state.database import reading
from conduit_dagster.state.steps import Decision, Plan, SourceCount
from conduit_dagster.state.tables import sources, steps


def offset_gaps(database: sa.Engine, pipeline: str) -> list[str]:
    """Return a description of every step that does not begin where the previous one ended.

    Covers the steps in the store, the newest fifty: earlier checks have covered older gaps.
    """
    with reading(database) as connection:
        mine = steps.c.pipeline == pipeline, steps.c.state == "done"
        done = connection.execute(sa.select(steps.c.plan, steps.c.decision).where(*mine).order_by(steps.c.step)).all()
        known = connection.execute(sa.select(sources).where(sources.c.pipeline == pipeline)).mappings().all()
    chain = _Chain()
    for plan, decision in done:
        chain.follow(msgspec.json.decode(plan, type=Plan), msgspec.json.decode(decision, type=Decision))
    for row in known:
        chain.arrive(row)
    return chain.gaps


class _Chain:
    """Next expected offset of each source, step by step. A source that was restarted has another generation."""

    def __init__(self) -> None:
        self.gaps: list[str] = []
        self._next: dict[tuple[str, int], int] = {}

    def follow(self, plan: Plan, decision: Decision) -> None:
        for span in plan.ranges:
            self._compare(span.source, span.generation, span.offset, f"step {plan.step} begins at")
            read = decision.sources.get(span.source, SourceCount()).read
            self._next[span.source, span.generation] = span.offset + read

    def arrive(self, row: Any) -> None:
        self._compare(row["source"], row["generation"], row["records"], "the source stands at")

    def _compare(self, source: str, generation: int, offset: int, what: str) -> None:
        expected = self._next.get((source, generation), offset)
        if offset != expected:
            self.gaps.append(f"{source}: {what} {offset}, the step before it ended at {expected}")
