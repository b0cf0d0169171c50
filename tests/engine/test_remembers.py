"""A processor's memory from step to step, in a worker that continues and in a new one."""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import conduit_dagster
from conduit_dagster.engine.processor_state import ProcessorStateFiles, StatefulNode
from conduit_dagster.expressions import Clock
from conduit_dagster.processors.deduplicate import Deduplicate, DeduplicateSettings
from conduit_dagster.record import Record
from conduit_dagster.sdk import DROP, ProcessorContext
from conduit_dagster.state.steps import ProcessorState

SECOND = 1_000_000_000
OWN_LINES = str(Path(conduit_dagster.__file__).parent / "*")


class Worker:
    """A processor with memory."""

    def __init__(self, folder: str, records: int | None, time: str | None, node: str = "p:x") -> None:
        settings = {"key": "after.v", "window.records": records, "window.time": time}
        self.clock, self._folder, self._node = Clock(0), folder, node
        self.processor = Deduplicate(
            DeduplicateSettings.model_validate(settings), ProcessorContext("p", "p:x", self.clock)
        )
        self._remembers = StatefulNode(self.processor)

    def step(
        self, number: int, began: ProcessorState, now: int, values: list[int], first: int
    ) -> tuple[list[bool], ProcessorState]:
        """Which records are dropped, and the memory of the next step."""
        self.clock.now_ns = now * SECOND
        self._remembers.recall(self._node, began, self._folder)
        block = [Record(first + i, {}, {"v": value}) for i, value in enumerate(values)]
        dropped = [result is DROP for result in self.processor.process_block(block)]
        return dropped, self._remembers.keep(self._folder, number)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 5), max_size=6), st.booleans()), max_size=40),
    st.sampled_from([(4, None), (None, "4s"), (6, "3s")]),
)
def test_who_begins_answers_as_who_goes_on(steps: list[tuple[int, list[int], bool]], window: Any) -> None:
    """Whatever the clock does: a step repeated in another worker must give the same result."""
    with tempfile.TemporaryDirectory() as folder:
        lasting, memory, first = Worker(folder, *window), ProcessorState(), 0
        for number, (now, values, fails) in enumerate(steps):
            fresh = Worker(folder, *window, node="p:another").step(number, memory, now, values, first)
            dropped, after = lasting.step(number, memory, now, values, first)
            assert dropped == fresh[0]
            assert [(p.entries, p.number, p.at_ns) for p in after.parts] == [
                (p.entries, p.number, p.at_ns) for p in fresh[1].parts
            ]
            if not fails:  # otherwise the step did not count, and the next one begins where it did
                memory, first = after, first + len(values)


@pytest.mark.parametrize(("records", "time"), [(1_000, None), (None, "20s"), (1_000, "1h"), (10_000, "20s")])
def test_memory_holds_two_windows(tmp_path: Path, records: int | None, time: str | None) -> None:
    """About 200 bytes per key, and not the keys of all steps; fifty records per second, four seconds per step."""
    worker, memory = Worker(str(tmp_path), records, time), ProcessorState()
    files = ProcessorStateFiles(str(tmp_path))
    try:
        for number in range(250):
            if number == 2:  # memory for the first ones' imports is not counted as theirs
                tracemalloc.start()
            first = number * 200
            _, after = worker.step(number, memory, number * 4, list(range(first, first + 200)), first)
            files.forget({"x": memory}, {"x": after})
            memory = after
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # of the engine's own lines: what another thread of the test process imports meanwhile is none of it
    held = snapshot.filter_traces([tracemalloc.Filter(True, OWN_LINES)]).statistics("filename")
    assert 50_000 < sum(one.size for one in held) < 1_400 * 250, held
    assert len(list(tmp_path.iterdir())) <= 17


def test_a_worker_has_one_memory_of_a_pipeline(tmp_path: Path) -> None:
    """A replay and a changed file are other programs, with their own processors."""
    first, second = (Worker(str(tmp_path), 100, None) for _ in range(2))
    _, memory = first.step(0, ProcessorState(), 0, [1, 2, 3], 0)
    assert second.step(1, memory, 1, [3, 4], 3)[0] == [True, False]
    assert len(first.processor.entries()) == 0
    assert first.step(1, memory, 1, [3, 4], 3)[0] == [True, False]


def test_another_generation_of_a_source_begins_without_a_memory(tmp_path: Path) -> None:
    worker = Worker(str(tmp_path), 100, None)
    _, memory = worker.step(0, ProcessorState().under({"a": 1, "b": 1}), 0, [1, 2], 0)
    assert memory.under({"a": 1, "b": 1, "new": 5}).parts == memory.parts
    again = memory.under({"a": 2, "b": 1})
    assert (again.parts, again.count) == ([], 2)
    assert worker.step(1, again, 1, [1, 2], 2)[0] == [False, False]
