"""Human-readable view of one dead letter: its records, and what the pipeline would do with it now."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.dead_letters.letter_layout import jsonable
from conduit_dagster.engine.dead_letters.search import DeadLetterSearch, FoundLetter
from conduit_dagster.engine.redaction import Redaction
from conduit_dagster.engine.trace import TracedNode, trace
from conduit_dagster.record import Record, envelope
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.dead_letters import STATES, DeadLetterQuery, Key


def letter_facts(
    letters: DeadLetterSearch, bound: BoundPipeline | None, pipeline: str, key: Key, reveal: bool = False
) -> dict[str, Any]:
    """Return ``row`` of the index, ``failed`` and ``original`` as JSON, and ``nodes``.

    The nodes are those of the file now, each with its result for the original; none if the file is gone or has errors.
    What the file redacts is masked unless ``reveal``.

    Raises ``FatalError`` (``dead_letters.unknown``, ``dead_letters.damaged``).
    """
    found = next(letters.all(DeadLetterQuery(STATES, keys=[key])), None)
    if found is None:
        raise FatalError(
            f"pipeline {pipeline} has no dead letter {key[0]}.{key[1]}",
            code="dead_letters.unknown",
            fix=f"conduit-dagster dlq list {pipeline} --state all prints the ids",
        )
    original = found.original()
    view = _View(Redaction([] if reveal or bound is None else bound.program.redact))
    return {
        "row": found.row,
        "failed": view.record(found.failed()),
        "original": view.record(original),
        "nodes": [] if original is None or bound is None else view.nodes(bound, found, original),
    }


class _View:
    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction

    def record(self, record: Record | None) -> Any:
        return None if record is None else record_json(self._redaction.record(record))

    def nodes(self, bound: BoundPipeline, found: FoundLetter, original: Record) -> list[dict[str, Any]]:
        pipeline = bound.compiled
        inlet = next((one for one in pipeline.inlets if one.origin == found.row["source"] and not one.only), None)
        if inlet is None:
            return []
        return [self._node(one, original) for one in trace(pipeline, inlet, original, time.time_ns()).nodes]

    def _node(self, passed: TracedNode, original: Record) -> dict[str, Any]:
        said = "filtered" if passed.filtered else "passed"
        for nack, failed in passed.nacked:
            masked = self._redaction.nack(nack, original, failed)
            said = f"nacked, {masked.code}: {masked.message}"
        return {"node": passed.node, "said": said, "records": [self.record(record) for record in passed.records]}


def record_json(record: Record | None) -> Any:
    """Return a record in Conduit's layout, with values that JSON can't hold as text."""
    return None if record is None else jsonable(msgspec.to_builtins(envelope(record)))
