"""Delivery hashes of a pipeline's steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS, CompiledPipeline
from conduit_dagster.engine.hashes import delivery_hash
from conduit_dagster.state.steps import Plan, Range

LETTERS: int = 10**12
"""Start of the number space for names of dead letters found at publishing. Their skip counts records of the step's
range, separately from the step's own dead-letter delivery; otherwise two dead letters would share a hash."""


class Names:
    """Names of deliveries and their children. The same range of the same source gives the same hash."""

    def __init__(self, pipeline: CompiledPipeline) -> None:
        self._pipeline = pipeline

    def named(self, plan: Plan) -> Plan:
        """Return the plan with a hash per consumer, and the step's own under the empty name: computed once, stored."""
        sources = self._sources(plan.ranges)
        hashes = {name: self._hash(name, sources) for name in ("", *self._pipeline.consumers())}
        return msgspec.structs.replace(plan, named=sources, hashes=hashes)

    def child(self, plan: Plan, consumer: str, skip: int, take: int) -> str:
        """Return the hash of a part of a delivery."""
        return self._hash(consumer, plan.named or self._sources(plan.ranges), skip, take)

    def _sources(self, ranges: Sequence[Range]) -> list[dict[str, Any]]:
        return [self._source(span) for span in ranges]

    def _source(self, span: Range) -> dict[str, Any]:
        place = self._pipeline.inlet(span.source).source.place
        start, end = place(span.start), place(span.end)
        return {"source": span.source, "generation": span.generation, "start": start, "end": end}

    def _hash(self, consumer: str, sources: list[dict[str, Any]], skip: int = 0, take: int | None = None) -> str:
        kind: Literal["data", "dlq"] = "dlq" if consumer == DEAD_LETTERS else "data"
        name = self._pipeline.program.pipeline
        return delivery_hash(kind=kind, pipeline=name, destination=consumer, sources=sources, skip=skip, take=take)
