"""The delivery hash, which identifies one step for one consumer (reference 5, and DELIVERY.md, Units)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import rfc8785

from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS, CompiledPipeline
from conduit_dagster.engine.delivery_progress import Shipment
from conduit_dagster.sdk import Delivery
from conduit_dagster.state.steps import DeliveryChild, Plan, Range

_EXACT = 2**53 - 1


def delivery_hash(
    *,
    kind: Literal["data", "dlq"],
    pipeline: str,
    destination: str,
    sources: Sequence[dict[str, Any]],
    skip: int = 0,
    take: int | None = None,
    without: Sequence[int] = (),
) -> str:
    """Compute the SHA-256 over canonical JSON (RFC 8785), in hex.

    Independent of attempt, epoch, run, time, settings, processors, partitioning and batch limits: the same range of the
    same source gives the same hash. ``sources`` are objects of ``source, generation, start, end``. ``skip`` and
    ``take`` select a child of a delivery; a null ``take`` means the whole delivery. ``without`` lists the places of
    that range that the child leaves out; it is omitted if empty.
    """
    name: dict[str, Any] = {
        "version": 1,
        "kind": kind,
        "pipeline": pipeline,
        "destination": destination,
        "sources": list(sources),
        "skip": skip,
        "take": take,
    }
    if without:
        name["without"] = list(without)
    return hashlib.sha256(rfc8785.dumps(_exact(name))).hexdigest()


def _exact(value: Any) -> Any:
    """Replace integers beyond 2^53 (such as inodes), which canonical JSON can't represent, by their decimal text."""
    if isinstance(value, dict):
        return {str(k): _exact(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(v) for v in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT:
        return str(value)
    return value


LETTERS: int = 10**12
"""Start of the number space for dead letters found at publishing. Their skip counts records of the step's range,
separately from the step's own dead-letter delivery; otherwise two deliveries of letters would share a hash.
"""


class DeliveryHashes:
    """Hashes of deliveries and their children. The same range of the same source gives the same hash."""

    def __init__(self, pipeline: CompiledPipeline) -> None:
        self._pipeline = pipeline

    def with_hashes(self, plan: Plan) -> Plan:
        """Return the plan with a hash per consumer; the empty name holds the step's own. Computed once and stored."""
        sources = self._sources(plan.ranges)
        hashes = {name: self._hash(name, sources) for name in ("", *self._pipeline.consumers())}
        return msgspec.structs.replace(plan, named=sources, hashes=hashes)

    def child(self, plan: Plan, consumer: str, child: DeliveryChild) -> str:
        """Return the hash of a child: a range of a delivery's records, possibly with some left out."""
        part = {"skip": child.skip, "take": child.take, "without": child.without}
        return self._hash(consumer, plan.named or self._sources(plan.ranges), **part)

    def delivery(self, shipment: Shipment, child: DeliveryChild) -> Delivery:
        """Return a child of a delivery under its own hash."""
        return shipment.child(self.child(shipment.plan, shipment.consumer, child), child)

    def _sources(self, ranges: Sequence[Range]) -> list[dict[str, Any]]:
        return [self._source(span) for span in ranges]

    def _source(self, span: Range) -> dict[str, Any]:
        place = self._pipeline.source_node(span.source).source.place
        start, end = place(span.start), place(span.end)
        return {"source": span.source, "generation": span.generation, "start": start, "end": end}

    def _hash(self, consumer: str, sources: list[dict[str, Any]], **part: Any) -> str:
        kind: Literal["data", "dlq"] = "dlq" if consumer == DEAD_LETTERS else "data"
        name = self._pipeline.program.pipeline
        return delivery_hash(kind=kind, pipeline=name, destination=consumer, sources=sources, **part)
