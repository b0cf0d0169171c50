"""Idempotency keys for side effects: the same in all attempts of a step (reference 5)."""

from __future__ import annotations

from dataclasses import dataclass, field

from conduit_dagster.record import Record

RecordKey = tuple[str, int, str]
"""Source, its generation, and the record's position: the same for every attempt, and unique to the record.

The source is the connector's id; of joined records their ids joined by ``+``, and of records that are sent again a name
of its own with ``@``.
"""


@dataclass
class IdempotencyKeys:
    """Idempotency keys of a worker's current step.

    One object per compiled pipeline; the engine sets it before the first record of a step, and :attr:`source` before
    each block. Nothing of a key is read off metadata, which processors may replace.
    """

    hashes: dict[str, str] = field(default_factory=dict[str, str])
    """Consumer to delivery hash; the empty name holds the step's own, for everything before the fan-out."""
    generations: dict[str, int] = field(default_factory=dict[str, int])
    source: str = ""
    """The source of the records at hand, as their step names it."""

    def hash_of(self, consumer: str = "") -> str:
        """Return the delivery hash of a consumer; empty outside a step."""
        return self.hashes.get(consumer, "")

    def key_of(self, record: Record) -> RecordKey:
        """Return the key of a record at hand. A record that a processor derived from another one has the same key."""
        return self.source, self.generations.get(self.source, 0), str(record.position)
