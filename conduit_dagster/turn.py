"""What stays the same over all attempts of a step: names for side effects (reference 5)."""

from __future__ import annotations

from dataclasses import dataclass, field

from conduit_dagster.record import SOURCE_CONNECTOR_ID, Record

RecordKey = tuple[str, int, str]
"""Source, its generation, and the record's position: the same for every attempt, and no other record has it."""


@dataclass
class Turn:
    """The step that a worker is at. One object per compiled pipeline; the stage sets it before the first record."""

    pipeline: str = ""
    hashes: dict[str, str] = field(default_factory=dict[str, str])
    """Consumer to delivery hash; under the empty name the step's own, for what lies before the fan-out."""
    generations: dict[str, int] = field(default_factory=dict[str, int])

    def hash_of(self, consumer: str = "") -> str:
        """The delivery hash of a consumer; empty outside a step."""
        return self.hashes.get(consumer, "")

    def key_of(self, record: Record) -> RecordKey:
        """The record's own key. A record that a processor made of another one has the other's."""
        origin = record.metadata.get(SOURCE_CONNECTOR_ID, "")
        source = origin.removeprefix(f"{self.pipeline}:")
        return source, self.generations.get(source, 0), str(record.position)
