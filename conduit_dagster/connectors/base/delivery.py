"""What is published: a step's records for one consumer, under their hash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conduit_dagster.state.steps import Part

Target = dict[str, Any]
"""Where a delivery goes: JSON values, chosen by the destination and stored before anything is published."""


@dataclass(frozen=True)
class Delivery:
    """One step for one consumer, or a child of it (a range of its records), under its hash."""

    hash: str
    step: int
    consumer: str
    staging: str
    """URL of the folder with its parts; empty when it could not be found any more."""
    parts: tuple[Part, ...]
    target: Target
    skip: int = 0
    """A child's name holds it: how many records of the delivery lie before the child's first."""
    take: int | None = None
    """How many records of the parts a child holds, from ``skip`` on; None: the parts hold just this delivery."""

    @property
    def records(self) -> int:
        """How many records it holds."""
        return sum(part.records for part in self.parts) if self.take is None else self.take

    @property
    def bytes(self) -> int:
        """Its length in bytes as staged."""
        return sum(part.bytes for part in self.parts)
