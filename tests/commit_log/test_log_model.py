"""The log, its offsets and compaction against a list in memory, with compactions that are killed anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from lab.commit_log_lab import LogLab, surviving
from lab.kills import Crash, hooked

CONSUMERS = ("c0", "c1")
POINTS = ("mid-compact-write", "after-compact-write", "after-compact-swap", "mid-compact-remove")


class LogMachine(RuleBasedStateMachine):
    """The model keeps every entry ever appended, which of them may be gone, and each consumer's offsets."""

    def __init__(self, log: LogLab) -> None:
        super().__init__()
        self.log = log
        self.namespaces: list[str] = []
        self.segments: list[int] = []
        self.roll_next = False
        self.nacked: set[int] = set()
        self.handled: dict[str, dict[str, int]] = {name: {} for name in CONSUMERS}
        self.there: set[int] = set()
        """What must be in the log."""
        self.maybe: set[int] = set()
        """What a killed compaction may have removed, or not."""

    @rule(names=st.text("ABC", min_size=1, max_size=6), files=st.integers(1, 3), nack=st.booleans())
    def append(self, names: str, files: int, nack: bool) -> None:
        first = len(self.namespaces)
        if self.roll_next or not self.segments:
            self.segments.append(first)
        nacked = [first] if nack else []
        size = 0 if self.roll_next else 1 << 40
        self.log.append(names, files=files, nacked=nacked, size=size, publish=not nack)
        self.roll_next = False
        self.namespaces += names
        self.nacked |= set(nacked)
        self.there |= set(range(first, len(self.namespaces)))

    @rule()
    def roll(self) -> None:
        self.roll_next = bool(self.segments)

    @rule(consumer=st.sampled_from(CONSUMERS), namespace=st.sampled_from(["A", "B", "C", "*"]), data=st.data())
    def move(self, consumer: str, namespace: str, data: st.DataObject) -> None:
        if self.namespaces:
            offset = data.draw(st.integers(0, len(self.namespaces) - 1))
            self.log.move(consumer, **{"all" if namespace == "*" else namespace: offset})
            known = self.handled[consumer]
            known[namespace] = max(known.get(namespace, -1), offset)

    def _handled(self, offset: int, namespace: str) -> bool:
        known = self.handled.values()
        return all(map(len, known)) and all(offset <= o.get(namespace, o.get("*", -1)) for o in known)

    def _kept(self) -> set[int]:
        return set(surviving(self.namespaces, self.segments, self._handled)) if self.segments else set()

    @rule()
    def compact(self) -> None:
        self.log.compact(*CONSUMERS)
        # entries that an earlier compaction removed, or kept because a consumer needed them then
        self.there, self.maybe = (self.there | (self.maybe & self._found())) & self._kept(), set()
        assert self.log.compact(*CONSUMERS).segments == 0
        for segment in self.segments[:-1]:
            names = [part.name for part in self.log.parts() if part.segment == segment]
            assert self.log.folder.names(segment) == sorted(names)

    @rule(point=st.sampled_from(POINTS), times=st.integers(1, 3))
    def compact_killed(self, point: str, times: int) -> None:
        passed = Counter[str]()

        def hook(name: str, _: str) -> None:
            passed[name] += 1
            if passed[point] == times:
                raise Crash

        with hooked(hook), suppress(Crash):
            self.log.compact(*CONSUMERS)
        gone = self.there - self._kept()
        self.there -= gone
        self.maybe |= gone

    def _found(self) -> set[int]:
        return set(self.log.offsets())

    @rule(data=st.data(), block=st.sampled_from([1, 3, 4096]))
    def read(self, data: st.DataObject, block: int) -> None:
        start = data.draw(st.integers(0, len(self.namespaces)))
        stop = data.draw(st.none() | st.integers(start, len(self.namespaces)))
        end = len(self.namespaces) if stop is None else stop
        found = [seen.offset for seen in self.log.read(start, stop, block)]
        assert found == sorted(set(found))
        assert {o for o in self.there if start <= o < end} <= set(found)
        assert set(found) <= {o for o in self.there | self.maybe if start <= o < end}

    @invariant()
    def entries_are_what_was_appended(self) -> None:
        found = self.log.read()
        assert self.there <= {seen.offset for seen in found} <= self.there | self.maybe
        for seen in found:
            assert seen.namespace == self.namespaces[seen.offset]
            assert seen.after == str(seen.offset).encode()
            assert (seen.nack is not None) == (seen.offset in self.nacked)
        parts = self.log.parts()
        assert [part.next for part in parts[:-1]] == [part.first for part in parts[1:]]
        assert sum(part.nacked for part in parts) == sum(seen.nack is not None for seen in found)
        assert sum(part.entries for part in parts) == len(found)


@pytest.mark.slow
def test_against_the_model(new_log: Callable[[], LogLab]) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    run_state_machine_as_test(
        lambda: LogMachine(new_log()),
        settings=settings(max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=checks),
    )
