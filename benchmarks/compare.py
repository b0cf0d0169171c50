"""Several ways to do the same work, in turn, and again: the controls say how much of a difference is noise."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.processes import Peak, cpu_seconds, watching


@dataclass(frozen=True)
class Side:
    """One way to do the work."""

    name: str
    prepare: Callable[[], None]
    """Not timed: removes what was written before."""
    run: Callable[[], float]
    """Gives the seconds."""
    count: Callable[[], list[int]]
    """Records in each destination, counted there and not by an engine."""
    wanted: int


class _Times:
    def __init__(self) -> None:
        self.first: list[float] = []
        self.again: list[float] = []
        self.cpu: list[float] = []
        self.peak = Peak()

    @property
    def all(self) -> list[float]:
        return self.first + self.again


def compare(sides: Sequence[Side], records: int, rounds: int) -> dict[str, Any]:
    """All sides, then all of them again, so many rounds after one that warms up. The first side is ours."""
    times = {side.name: _Times() for side in sides}
    for number in range(rounds + 1):
        for again in (False, True):
            for side in sides:
                own = times[side.name]
                taken, cpu = _run(side, own.peak)
                if number:
                    (own.again if again else own.first).append(taken)
                    own.cpu.append(cpu)
    ours, *others = times.items()
    return {
        "records": records,
        "ours": ours[0],
        "sides": {name: _side(own, records) for name, own in times.items()},
        "ratios": {name: _ratio(own.all, ours[1].all) for name, own in others},
    }


def _run(side: Side, peak: Peak) -> tuple[float, float]:
    """Seconds on the clock, and of CPU: another program takes from the first, less from the second."""
    side.prepare()
    # what the side before left to the kernel is not written at this one's cost
    os.sync()
    before = cpu_seconds()
    with watching(peak):
        taken = side.run()
    cpu = cpu_seconds() - before
    found = side.count()
    assert all(count == side.wanted for count in found), f"{side.name}: {found} records, not {side.wanted} each"
    return taken, cpu


def _side(own: _Times, records: int) -> dict[str, Any]:
    return {
        "records_per_second": round(records / statistics.median(own.all)),
        "control": _ratio(own.again, own.first),
        "cpu_seconds": round(statistics.median(own.cpu), 2),
        "seconds": [round(s, 3) for s in own.first],
        "seconds_again": [round(s, 3) for s in own.again],
        **own.peak.as_json(),
    }


def _ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """By how much ``fast`` is faster: the median of the pairs, which ran next to each other."""
    return round(statistics.median(a / b for a, b in zip(slow, fast, strict=True)), 3)
