"""Several ways to do the same work, in turn, and again: the controls say how much of a difference is noise."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.processes import Peak, cpu_seconds, watching


class Taken(NamedTuple):
    """What one run took."""

    seconds: float
    """On the clock."""
    cpu: float
    """Seconds of CPU, of all cores together: another program takes from the clock, less from these."""


@dataclass(frozen=True)
class Side:
    """One way to do the work."""

    name: str
    prepare: Callable[[], None]
    """Not timed: removes what was written before."""
    run: Callable[[], float | Taken]
    """Gives the seconds; or all that was taken, where this process and those it started are not all that worked."""
    count: Callable[[], list[int]]
    """Records in each destination, counted there and not by an engine."""
    wanted: int


class Times:
    """All counted runs of a side; the same place in two lists is the same round."""

    def __init__(self) -> None:
        self.first: list[Taken] = []
        self.again: list[Taken] = []
        self.peak = Peak()

    @property
    def all(self) -> list[Taken]:
        """The first turns, then the second ones."""
        return self.first + self.again

    @property
    def control(self) -> float:
        """The second turns against the first: how much of a difference is noise."""
        return ratio(seconds(self.again), seconds(self.first))


def compare(sides: Sequence[Side], records: int, rounds: int) -> dict[str, Any]:
    """How fast the sides are, which take turns. The first one is ours."""
    times = take_turns(sides, rounds)
    ours, *others = times.items()
    return {
        "records": records,
        "ours": ours[0],
        "sides": {name: _side(own, records) for name, own in times.items()},
        "ratios": {name: ratio(seconds(own.all), seconds(ours[1].all)) for name, own in others},
    }


def take_turns(sides: Sequence[Side], rounds: int) -> dict[str, Times]:
    """All sides, then all of them again, so many rounds after one that warms up: the times by the side's name."""
    times = {side.name: Times() for side in sides}
    for number in range(rounds + 1):
        for again in (False, True):
            for side in sides:
                own = times[side.name]
                taken = _run(side, own.peak)
                if number:
                    (own.again if again else own.first).append(taken)
    return times


def seconds(runs: Sequence[Taken]) -> list[float]:
    """On the clock."""
    return [run.seconds for run in runs]


def cpu(runs: Sequence[Taken]) -> list[float]:
    """Seconds of CPU."""
    return [run.cpu for run in runs]


def ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """By how much ``fast`` is faster: the median of the pairs, which ran next to each other."""
    return round(statistics.median(a / b for a, b in zip(slow, fast, strict=True)), 3)


def _run(side: Side, peak: Peak) -> Taken:
    side.prepare()
    # what the side before left to the kernel is not written at this one's cost
    os.sync()
    before = cpu_seconds()
    with watching(peak):
        taken = side.run()
    if not isinstance(taken, Taken):
        taken = Taken(taken, cpu_seconds() - before)
    found = side.count()
    assert all(count == side.wanted for count in found), f"{side.name}: {found} records, not {side.wanted} each"
    return taken


def _side(own: Times, records: int) -> dict[str, Any]:
    return {
        "records_per_second": round(records / statistics.median(seconds(own.all))),
        "control": own.control,
        "cpu_seconds": round(statistics.median(cpu(own.all)), 2),
        "seconds": [round(s, 3) for s in seconds(own.first)],
        "seconds_again": [round(s, 3) for s in seconds(own.again)],
        **own.peak.as_json(),
    }
