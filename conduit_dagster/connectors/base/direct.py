"""Destinations that a second Spark job sends to."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from conduit_dagster.connectors.base.record_staging import RecordStaging
from conduit_dagster.connectors.base.sender import Sender, SenderTask


class DirectDestination(RecordStaging):
    """A destination that a second Spark job feeds with the staged records, in order, at least once.

    Its sender acks or nacks single records; a delivery that was acked in part goes on behind its consumer's offset.
    """

    placement = "direct"
    batch: ClassVar[int] = 1_000
    """How many records :meth:`Sender.send` is given at a time, at most."""

    @abstractmethod
    def sender(self, task: SenderTask) -> Sender:
        """A sender for one delivery. Runs in a task."""
