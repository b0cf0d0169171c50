"""Values computed at their first use."""

from __future__ import annotations

import threading

from conduit_dagster.lazy_property import lazy_property


class Meeting:
    def __init__(self, barrier: threading.Barrier) -> None:
        self._barrier = barrier
        self.computed = 0

    @lazy_property
    def place(self) -> int:
        """Wait for the other one."""
        self.computed += 1
        return self._barrier.wait(60)


def test_two_instances_compute_at_the_same_time() -> None:
    """With one lock for the class neither would ever meet the other: pipelines would block each other."""
    barrier = threading.Barrier(2)
    both = [Meeting(barrier), Meeting(barrier)]
    threads = [threading.Thread(target=getattr, args=(one, "place")) for one in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.place for one in both) == [0, 1]
    assert [one.computed for one in both] == [1, 1], "kept once it is there"


def test_the_class_shows_the_property() -> None:
    assert Meeting.place.__doc__ == "Wait for the other one."
