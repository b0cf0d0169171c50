"""Comparison of several ways to do the same work, in turn, and again: the controls show the noise."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.processes import Peak, cpu_seconds, watching


class Taken(NamedTuple):
    """Cost of one run."""

    seconds: float
    """Wall-clock seconds."""
    cpu: float
    """CPU seconds of all cores: other programs affect these less than wall-clock time."""


@dataclass(frozen=True)
class Side:
    """One way to do the work."""

    name: str
    prepare: Callable[[], None]
    """Untimed: removes earlier output."""
    run: Callable[[], float | Taken]
    """Return the seconds; or the full cost, if processes other than this one and its children took part."""
    count: Callable[[], list[int]]
    """Return the number of records in each destination, counted there and not by an engine."""
    wanted: int


class Times:
    """All counted runs of a side; equal indexes in two lists are the same round."""

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
    """Return the speed of the sides, which take turns. The first one is ours."""
    times = take_turns(sides, rounds)
    ours, *others = times.items()
    return {
        "records": records,
        "ours": ours[0],
        "sides": {name: _side(own, records) for name, own in times.items()},
        "ratios": {name: ratio(seconds(own.all), seconds(ours[1].all)) for name, own in others},
    }


def take_turns(sides: Sequence[Side], rounds: int) -> dict[str, Times]:
    """Run all sides, then all of them again, for this many rounds after a warm-up; return the times by side name."""
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
    """Return wall-clock seconds."""
    return [run.seconds for run in runs]


def cpu(runs: Sequence[Taken]) -> list[float]:
    """Return CPU seconds."""
    return [run.cpu for run in runs]


def ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """Return how much faster ``fast`` is: the median of the pairs, which ran next to each other."""
    return round(statistics.median(a / b for a, b in zip(slow, fast, strict=True)), 3)


def _run(side: Side, peak: Peak) -> Taken:
    side.prepare()
    # flush the kernel's buffers of the previous side, so that this one does not pay for them
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
