"""The clock and the counts of the testing kit."""

from __future__ import annotations

from pathlib import Path

from lab.waiting import at_once

from conduit_dagster.connectors.chaos.fault import SharedCounter
from conduit_dagster.testing import FakeClock


def test_the_clock_moves_only_when_told_to() -> None:
    clock = FakeClock(5)
    assert (clock.now_ns(), clock.now_ns()) == (5, 5)
    assert clock.advance(1.5) == clock.now_ns() == 1_500_000_005
    clock.advance(-1)
    assert clock.now_ns() == 500_000_005


def test_threads_advance_the_clock_together() -> None:
    clock = FakeClock()
    at_once(lambda _: [clock.advance(1) for _ in range(1_000)], 8)
    assert clock.now_ns() == 8_000 * 1_000_000_000


def test_a_tally_gives_out_exactly_its_limit(tmp_path: Path) -> None:
    """Concurrent callers."""
    path = tmp_path / "new" / "p.failures"
    taken = at_once(lambda _: sum(SharedCounter(path).take(1, 100) for _ in range(50)), 8)
    assert sum(taken) == SharedCounter(path).count == 100
    assert SharedCounter(path).take(5, 103) == 3
    assert SharedCounter(path).take(1, 50) == 0
    assert SharedCounter(path).take(7) == 7
    assert SharedCounter(path).count == 110
