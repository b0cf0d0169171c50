"""The manifest: what an append is, where segments end, what an operator may set."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from itertools import count

import pytest
import sqlalchemy as sa
from lab.commit_log_lab import PIPELINE, SOURCE, LogLab

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.delivery_store import offsets_of, set_offsets
from conduit_dagster.state.log_store import LogPart, LogState, Segment


def state(log: LogLab) -> LogState:
    return log.look(lambda c: log.store.state(c, SOURCE))


def segments(log: LogLab) -> list[Segment]:
    return log.look(lambda c: log.store.segments(c, SOURCE))


def test_a_log_without_entries(log: LogLab) -> None:
    assert state(log) == LogState(0, None)
    assert (log.parts(), segments(log), log.read()) == ([], [], [])


def test_an_append_moves_offset_and_position(log: LogLab) -> None:
    parts = log.append(["a", "b", "a"], files=2, nacked=[1])
    assert [(p.first, p.next, p.entries, p.nacked) for p in parts] == [(0, 2, 2, 1), (2, 3, 1, 0)]
    assert state(log) == LogState(3, {"at": 3})
    log.append(["c"])
    assert state(log) == LogState(4, {"at": 4})
    assert [(seen.offset, seen.nack) for seen in log.read()] == [(0, None), (1, "node"), (2, None), (3, None)]


def test_a_position_may_move_without_records(log: LogLab) -> None:
    log.append(["a"])
    log.run(lambda c: log.store.commit(c, SOURCE, [], "further"))
    assert state(log) == LogState(1, "further")


def test_a_range_names_the_files_that_overlap_it(log: LogLab) -> None:
    for _ in range(3):
        log.append(["a", "b"])
    assert [p.first for p in log.parts(1, 3)] == [0, 2]
    assert [p.first for p in log.parts(2, 2)] == []
    assert [p.first for p in log.parts(4)] == [4]
    assert log.parts() == log.parts(0, 6)


def test_a_range_costs_the_same_in_a_long_log(log: LogLab) -> None:
    """A log of small steps has a hundred thousand files, and each step asks for its own."""

    def add(first: int, end: int) -> int:
        """Add files without their bytes; return how much SQLite does to find the last one."""
        parts = [LogPart(i, i + 1, 0, f"{i}", 1, 1, "") for i in range(first, end)]
        log.run(lambda c: log.store.commit(c, SOURCE, parts, None))
        return log.look(lambda c: _work(c, lambda: log.store.parts(c, SOURCE, end - 1, end)))

    short = add(0, 100)
    assert add(100, 5000) < 2 * short
    behind = [log.look(lambda c, at=at: _work(c, lambda: log.store.position_before(c, SOURCE, at))) for at in (4999, 1)]
    assert behind[1] < 2 * behind[0]


def _work(connection: sa.Connection, ask: Callable[[], object]) -> int:
    """Return the number of instructions of SQLite's virtual machine."""
    steps = count()
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    driver.set_progress_handler(lambda: next(steps) and 0, 1)
    ask()
    driver.set_progress_handler(None, 1)
    return next(steps)


def test_an_append_that_is_not_the_continuation_is_refused_and_changes_nothing(log: LogLab) -> None:
    log.append(["a", "b"])
    again = log.write(0, 1, ["x"])
    with pytest.raises(FatalError) as caught:
        log.run(lambda c: log.store.commit(c, SOURCE, [again], None))
    assert caught.value.code == "log.gap"
    assert state(log) == LogState(2, {"at": 2})
    assert log.offsets() == [0, 1]


def test_a_segment_that_is_full_is_closed(log: LogLab) -> None:
    """CASES C19."""
    log.append(["a"])
    size = segments(log)[0].bytes
    log.append(["b"], size=size + 1)
    assert [segment.first for segment in segments(log)] == [0]
    log.append(["c"], size=size + 1)
    log.append(["d"], size=size + 1)
    log.append(["e"], size=size + 1)
    assert [(s.first, s.next, s.parts, s.entries, s.active) for s in segments(log)] == [
        (0, 2, 2, 2, False), (2, 4, 2, 2, False), (4, 5, 1, 1, True),
    ]  # fmt: skip
    assert [seen.namespace for seen in log.read()] == list("abcde")


def test_logs_of_sources_are_apart(log: LogLab) -> None:
    log.append(["a"])
    assert log.look(lambda c: log.store.state(c, "p:other")) == LogState(0, None)
    assert log.look(lambda c: log.store.parts(c, "p:other")) == []


def offsets(log: LogLab) -> dict[str, dict[str, int]]:
    return log.look(lambda c: offsets_of(c, PIPELINE, SOURCE))


def set_to(log: LogLab, consumer: str, wanted: dict[str, int]) -> None:
    log.run(lambda c: set_offsets(c, PIPELINE, consumer, SOURCE, wanted, 1))


def test_one_row_per_consumer_and_namespace_that_never_moves_back(log: LogLab) -> None:
    """CASES C1 and C15: the offset log is compacted by construction."""
    for offset in (1, 4, 6, 4, 7, 10, 12):
        log.move("c0", all=offset)
    for offset in (4, 5, 7, 13):
        log.move("c1", all=offset, A=offset)
    assert offsets(log) == {"c0": {"*": 12}, "c1": {"*": 13, "A": 13}}


def test_an_operator_may_set_offsets_back_and_forward(log: LogLab) -> None:
    set_to(log, "c0", {"A": 5})
    assert offsets(log) == {"c0": {"A": 5}}
    log.move("c0", all=10, A=9, B=10)
    set_to(log, "c0", {"A": 2})
    assert offsets(log) == {"c0": {"*": 10, "A": 2, "B": 10}}
    set_to(log, "c0", {"*": 6})
    assert offsets(log) == {"c0": {"*": 6, "A": 2, "B": 6}}
    set_to(log, "c0", {"*": 20, "B": 21})
    assert offsets(log) == {"c0": {"*": 20, "A": 20, "B": 21}}
    set_to(log, "c1", {"*": 3})
    assert offsets(log)["c1"] == {"*": 3}
