"""Acks of single records, late, twice and in any order, against a simple model (CASES C1, C12, C13, A4)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from conduit_dagster.engine.acks import Acks
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
