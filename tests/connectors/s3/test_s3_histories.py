"""Random changes of a bucket, steps and crashes: whoever applies the records has what the bucket has."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.s3_lab import S3Lab
from lab.s3_reading import Reader

from conduit_dagster.connectors import kept_lists
from conduit_dagster.connectors.s3.object_position import parse_position
from conduit_dagster.record import Record
from conduit_dagster.sdk import Limit

pytestmark = pytest.mark.slow
NAMES = st.sampled_from([f"{i:02}" for i in range(6)])
SECONDS = st.integers(1_000, 1_020)
ACTIONS = st.one_of(
    st.tuples(st.just("put"), NAMES, SECONDS),
    st.tuples(st.just("put"), NAMES, SECONDS),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("step"), st.integers(1, 8), st.integers(1, 3)),
    st.tuples(st.just("cut"), st.integers(1, 8), st.integers(0, 7)),
)


class History:
    """A bucket, a reader, and a copy made of its records."""

    def __init__(self, s3: S3Lab) -> None:
        self.s3, self.reader = s3, Reader(s3)
        self.copy = dict[str, bytes]()
        self.positions = set[Any]()
        self._writes = 0

    def put(self, name: str, second: int) -> None:
        self._writes += 1
        self.s3.touch(name, b"%d" % self._writes, second)

    def remove(self, name: str) -> None:
        if name in self.s3.names():
            self.s3.remove(name)

    def step(self, most: int, n: int) -> int:
        start = self.reader.at
        found = self.reader.step(Limit(most, 10**12), n)
        assert len(found) <= most and found == self.reader.between(start, self.reader.at)
        self._apply(found)
        return len(found)

    def cut(self, most: int, place: int) -> None:
        """A step that ends after one of its records: the next one has the rest, and ends at the same place."""
        start = self.reader.at
        found = self.reader.step(Limit(most, 10**12))
        if found:
            end, place = self.reader.at, min(place, len(found) - 1)
            middle = json.loads(json.dumps(self.reader.cut(start, place)))
            first, rest = self.reader.between(start, middle), self.reader.between(middle, end)
            assert (first, rest) == (found[: place + 1], found[place + 1 :])
            self.reader.at = middle
            self._apply(first)
            if rest:
                assert self.reader.step(Limit(len(rest), 10**12)) == rest
                self._apply(rest)
            one, other, place_of = parse_position(self.reader.at), parse_position(end), self.reader.source().place
            assert place_of(one.like(other).as_json()) == place_of(other.like(one).as_json())

    def _apply(self, records: list[Record]) -> None:
        for record in records:
            assert record.position not in self.positions, "no record comes twice"
            self.positions.add(record.position)
            name = str(record.key, "utf-8").rpartition("/")[2]  # type: ignore[arg-type]
            if record.operation == "delete":
                del self.copy[name]
            else:
                assert (name in self.copy) == (record.operation == "update")
                assert isinstance(record.after, bytes)
                self.copy[name] = record.after


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(ACTIONS, min_size=15, max_size=30))
def test_the_copy_has_what_the_bucket_has(s3: S3Lab, monkeypatch: pytest.MonkeyPatch, actions: list[Any]) -> None:
    monkeypatch.setattr(kept_lists, "LEAVES_AT", 3)
    history = History(s3.within(secrets.token_hex(4)))
    for action, *arguments in actions:
        getattr(history, action)(*arguments)
    while history.step(5, 2):
        pass
    assert history.copy == {name: history.s3.content(name) for name in history.s3.names()}
