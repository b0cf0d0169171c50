"""Waits of an idle loop: short at first, long later, and their share of a core."""

from __future__ import annotations

import pytest

from conduit_dagster.engine.supervisor import IdleWait


class Machine:
    """A clock, and the CPU time of the polling thread."""

    def __init__(self) -> None:
        self.now = self.cpu = 0.0
        self.idle = IdleWait(lambda: self.now, lambda: self.cpu)

    def look(self, cost: float = 0.0001) -> float:
        """One poll that finds nothing, then the wait."""
        self.cpu += cost
        wait = self.idle.seconds()
        self.now += cost + wait
        return wait


def test_a_source_that_trickles_is_looked_at_twenty_times_a_second() -> None:
    machine = Machine()
    for _ in range(20):
        waits = [machine.look() for _ in range(80)]
        assert waits == [0.05] * 80
        machine.idle.reset()


def test_a_quiet_source_is_looked_at_once_a_second() -> None:
    machine = Machine()
    waits = [machine.look() for _ in range(200)]
    assert waits[:90] == [0.05] * 90
    assert waits[-50:] == [1.0] * 50


def test_the_wait_is_short_again_after_a_step() -> None:
    machine = Machine()
    for _ in range(200):
        machine.look()
    machine.idle.reset()
    assert machine.look() == 0.05


@pytest.mark.parametrize(
    ("cost", "share"), [(0.0002, 0.0025), (0.004, 0.0025), (0.02, 0.0025), (0.049, 0.005), (0.09, 0.01)]
)
def test_looks_at_a_quiet_source_cost_a_quarter_of_a_percent_of_a_core(cost: float, share: float) -> None:
    """More if a poll is so expensive that ten seconds, the longest wait, are too short for that."""
    machine = Machine()
    for _ in range(200):
        machine.look(cost)
    began, busy = machine.now, machine.cpu
    for _ in range(50):
        machine.look(cost)
    assert (machine.cpu - busy) / (machine.now - began) <= share


def test_a_look_that_takes_seconds_is_repeated_after_ten() -> None:
    machine = Machine()
    assert machine.look(3.0) == 10.0


def test_work_on_a_step_is_not_taken_for_the_cost_of_a_look() -> None:
    machine = Machine()
    machine.cpu += 5
    machine.idle.reset()
    assert machine.look() == 0.05


def test_looks_soon_after_a_step_cost_half_a_percent_of_a_core() -> None:
    machine = Machine()
    for _ in range(200):
        machine.look(0.001)
    machine.idle.reset()
    assert machine.look(0.001) == pytest.approx(0.2)
