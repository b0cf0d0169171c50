"""Which deliveries remove the hashes of much older ones."""

from __future__ import annotations

import hashlib

import pytest

from conduit_dagster.connectors.kept_hashes import KEPT_STEPS, new_floor
from conduit_dagster.sdk import Delivery


def delivery(step: int) -> Delivery:
    return Delivery(hashlib.sha256(b"%d" % step).hexdigest(), step, "out", "", (), {})


@pytest.mark.parametrize(("first", "every"), [(1, 1), (1, 2), (50, 100)])
def test_hashes_are_removed_whatever_steps_have_records(first: int, every: int) -> None:
    """Of two sources in turn, a destination may get the records of one: none ever came at a hundredth step."""
    steps = range(KEPT_STEPS + first, KEPT_STEPS + first + 1_000 * every, every)
    floors = [new_floor(delivery(step)) for step in steps]
    removing = [step for step, floor in zip(steps, floors, strict=True) if floor is not None]
    assert 1 <= len(removing) <= 50
    assert [floor for floor in floors if floor is not None] == [step - KEPT_STEPS for step in removing]


def test_nothing_is_removed_before_there_is_more_than_is_kept() -> None:
    assert {new_floor(delivery(step)) for step in range(KEPT_STEPS + 1)} == {None}
