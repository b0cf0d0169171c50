"""What a destination says of a delivery that it does not take."""

from __future__ import annotations

from typing import Literal

from conduit_dagster.record import Nack

Claim = Literal["split", "nacked"]
Claimed = Literal["split", "nacked", "delivered"]


class Rejected(Exception):  # noqa: N818  # a verdict on a record, not a fault of the program
    """What ``publish`` raises when the destination names the record that it refuses. Nothing of the delivery is in.

    ``place`` counts the records of this delivery (of the child, for a child) from 0.
    """

    def __init__(self, place: int, nack: Nack) -> None:
        super().__init__(f"record {place}: {nack.message}")
        self.place = place
        self.nack = nack


class AlreadyClaimed(Exception):  # noqa: N818  # as above
    """What ``publish`` raises when the delivery's hash is claimed at the destination as split or nacked."""

    def __init__(self, state: Claim) -> None:
        super().__init__(state)
        self.state: Claim = state
