"""Idempotency keys for side effects: the same in all attempts of a step (reference 5)."""

from __future__ import annotations

from dataclasses import dataclass, field

from conduit_dagster.record import SOURCE_CONNECTOR_ID, Record

RecordKey = tuple[str, int, str]
"""Source, its generation, and the record's position: the same for every attempt, and unique to the record."""


@dataclass
class IdempotencyKeys:
    """Idempotency keys of a worker's current step.

    One object per compiled pipeline; the stage sets it before the first record.
    """

    pipeline: str = ""
    hashes: dict[str, str] = field(default_factory=dict[str, str])
    """Consumer to delivery hash; the empty name holds the step's own, for everything before the fan-out."""
    generations: dict[str, int] = field(default_factory=dict[str, int])

    def hash_of(self, consumer: str = "") -> str:
        """Return the delivery hash of a consumer; empty outside a step."""
        return self.hashes.get(consumer, "")

    def key_of(self, record: Record) -> RecordKey:
        """Return the record's key. A record that a processor derived from another one has the same key."""
        origin = record.metadata.get(SOURCE_CONNECTOR_ID, "")
        source = origin.removeprefix(f"{self.pipeline}:")
        return source, self.generations.get(source, 0), str(record.position)
