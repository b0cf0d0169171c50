"""Pieces of a delivery, without a destination: however it fails, each record is decided once and none is skipped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from conduit_dagster.engine.delivery_progress import (
    after,
    before_marked,
    part_of,
    past_marked,
    pieces,
    places_of,
    split_into,
    trimmed,
    with_refused,
)
from conduit_dagster.state.steps import DeliveryChild, DeliveryProgress


class Sending:
    """A delivery whose pieces are answered as a test requires."""

    def __init__(self, total: int, skips: bool) -> None:
        self.total, self.skips = total, skips
        self.progress = DeliveryProgress(pending=[DeliveryChild(0, total)], split=True)
        self.delivered: list[int] = []
        self.nacked: list[int] = []

    def next(self) -> DeliveryChild | None:
        """Return the next piece, as it is sent."""
        self.progress = past_marked(self.progress)
        if self.progress.handled >= self.total:
            return None
        assert self.progress.pending[0].skip == self.progress.handled
        spans = [(one.skip, one.skip + one.take) for one in self.progress.pending]
        assert [end for _, end in spans[:-1]] == [begin for begin, _ in spans[1:]], "pieces are beside one another"
        assert spans[-1][1] == self.total
        child = before_marked(self.progress.pending[0], self.progress)
        return DeliveryChild(child.skip, 1) if child.single else child

    def answer(self, child: DeliveryChild, answer: str, chosen: list[int]) -> None:
        """Deliver it, refuse some of its records, or fail with an error that names none."""
        places = list(places_of(child))
        named = sorted({places[n % len(places)] for n in chosen})
        if answer == "deliver":
            self.delivered += places
            self.progress = after(self.progress, child.take, refused=len(child.without))
        elif answer == "refuse" or len(places) == 1:
            *nacked, last = named
            # now and then the window does not accept the last of them
            apart = [last] if nacked and chosen[0] % 2 else []
            nacked = nacked if apart else named
            self.nacked += nacked
            self.progress = with_refused(self.progress, child, nacked, apart, self.skips)
        else:
            self.progress = split_into(self.progress, self.progress.pending, child, pieces(child, answer == "halve"))


@given(
    st.integers(1, 12),
    st.booleans(),
    st.lists(
        st.tuples(
            st.sampled_from(["deliver", "refuse", "refuse", "halve", "singles"]),
            st.lists(st.integers(0, 11), min_size=1, max_size=6),
        ),
        max_size=30,
    ),
)
def test_each_record_is_delivered_or_nacked_once(total: int, skips: bool, answers: list[tuple[str, list[int]]]) -> None:
    """Records that pass keep their order; no piece is sent twice under one name unless it can't be divided further."""
    sending, sent = Sending(total, skips), 0
    while (child := sending.next()) is not None:
        answer, chosen = answers[sent] if sent < len(answers) else ("deliver", [0])
        sent += 1
        assert trimmed(child) == child, "its name has no ends that are left out"
        assert skips or not child.without
        sending.answer(child, answer, chosen)
    assert sorted(sending.delivered + sending.nacked) == list(range(total))
    assert sending.delivered == sorted(sending.delivered)
    assert sending.progress.refused == len(sending.nacked)
    assert (sending.progress.marked, sending.progress.pending) == ([], [])


@given(st.integers(0, 5), st.integers(1, 8), st.sets(st.integers(0, 12)), st.integers(1, 3))
def test_a_part_that_begins_behind_left_out_records_keeps_its_name(
    skip: int, take: int, left_out: set[int], passed: int
) -> None:
    """Progress skips nacks at the front of a piece: what is sent afterwards is the same piece."""
    child = DeliveryChild(skip, take, without=sorted(place for place in left_out if skip <= place < skip + take))
    first = trimmed(child)
    if first.take:
        moved = min(passed, first.skip - skip)
        assert trimmed(part_of(child, skip + moved, take - moved)) == first
        assert places_of(first) == places_of(child) or list(places_of(first)) == list(places_of(child))
