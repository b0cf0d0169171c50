"""Acks of single records, late, twice and in any order, against a simple model (CASES C1, C12, C13, A4), and their
files: the newest one that is whole counts.
"""

from __future__ import annotations

from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from lab.small_disk import no_file_beyond
from lab.waiting import wait_until

from conduit_dagster.engine.acks import Acked, AckFile, Acks, newest
from conduit_dagster.record import Nack

FIRST = 5


class AcksMachine(RuleBasedStateMachine):
    """Records 5, 6, ... with namespaces; the model is the set of handled places."""

    def __init__(self) -> None:
        super().__init__()
        self.acks = Acks(FIRST)
        self.names: list[str] = []
        self.handled: set[int] = set()
        self.refused: list[int] = []
        self.before = 0
        self.safe = 0

    @rule(name=st.sampled_from("AB"))
    def send(self, name: str) -> None:
        place = FIRST + len(self.names)
        self.acks.sent(place, name, "in", place * 10)
        self.names.append(name)

    @rule(place=st.integers(0, 40))
    def ack(self, place: int) -> None:
        self.acks.ack(place)
        self.handled |= {place} & self.places

    @rule(place=st.integers(0, 40))
    def ack_up_to(self, place: int) -> None:
        self.acks.ack_up_to(place)
        self.handled |= {known for known in self.places if known <= place}

    @rule(place=st.integers(0, 40))
    def nack(self, place: int) -> None:
        if place in self.places - self.handled:
            if not self.refused:
                self.safe = self._front()
            self.refused.append(place)
            self.handled.add(place)
        self.acks.nack(place, Nack("no", "no"))

    @property
    def places(self) -> set[int]:
        return set(range(FIRST, FIRST + len(self.names)))

    def _front(self) -> int:
        return next((p for p in sorted(self.places) if p not in self.handled), FIRST + len(self.names))

    @invariant()
    def agrees(self) -> None:
        acked = self.acks.acked()
        assert acked.handled == self._front()
        assert acked.handled >= self.before
        self.before = acked.handled
        assert acked.next == (("in", acked.handled * 10) if acked.handled in self.places else None)
        assert self.acks.unhandled == len(self.places - self.handled)
        assert sorted(self.acks.nacks) == sorted(self.refused)

    @invariant()
    def namespaces_agree(self) -> None:
        for name in "AB":
            mine = [p for p in sorted(self.places) if self.names[p - FIRST] == name]
            front = next((i for i, p in enumerate(mine) if p not in self.handled), len(mine))
            known = self.acks.acked().namespaces.get(name)
            assert (None if known is None else known[0]) == (mine[front - 1] if front else None)

    @invariant()
    def nothing_behind_a_nack_is_durable_before_it_is_recorded(self) -> None:
        assert self.acks.safe().handled == (self.safe if self.refused else self._front())


TestAcks = AcksMachine.TestCase
TestAcks.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def sent(count: int) -> Acks:
    acks = Acks(0)
    for place in range(count):
        acks.sent(place, "", "in", place)
    return acks


def handled(folder: Path) -> list[int]:
    return [one.handled for one in newest(str(folder))]


def test_each_file_replaces_the_one_before(tmp_path: Path) -> None:
    acks = sent(9)
    with AckFile(acks, str(tmp_path), "job", 0.01):
        for upto in (3, 6):
            acks.ack_up_to(upto)
            wait_until(lambda upto=upto: handled(tmp_path) == [upto + 1], "the acks are durable")
        wait_until(lambda: len(list(tmp_path.iterdir())) == 1, "the older file is gone")


def test_a_full_disk_delays_acks_only_while_it_is_full(tmp_path: Path) -> None:
    acks = sent(9)
    with AckFile(acks, str(tmp_path), "job", 0.01):
        acks.ack_up_to(2)
        wait_until(lambda: handled(tmp_path) == [3], "the acks are durable")
        with no_file_beyond(1):
            acks.ack_up_to(5)
            tried = next(tmp_path.iterdir()).name
            wait_until(lambda: tried != max(path.name for path in tmp_path.iterdir()), "another file is tried")
            assert handled(tmp_path) == [3]
        wait_until(lambda: handled(tmp_path) == [6], "the acks are durable again")


def test_a_torn_file_hides_nothing(tmp_path: Path) -> None:
    acks = sent(9)
    with AckFile(acks, str(tmp_path), "job", 0.01):
        acks.ack_up_to(4)
        wait_until(lambda: handled(tmp_path) == [5], "the acks are durable")
    (whole,) = tmp_path.iterdir()
    # the first acks may have had a file of their own
    for number, torn in enumerate((b"", whole.read_bytes()[:-1]), int(whole.stem[-8:]) + 1):
        (tmp_path / f"acks-job-{number:08d}.json").write_bytes(torn)
    (tmp_path / "acks-other-00000000.json").write_bytes(b"")
    assert newest(str(tmp_path)) == [Acked(5, ("in", 5), {"": (4, "in", 4)})]
