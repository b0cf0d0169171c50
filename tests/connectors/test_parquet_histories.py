"""Random histories of a folder of Parquet files, read with lists of finished files and without."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.kept import MemoryValues
from lab.parquet_inbox import NEVER, Inbox, Reader

from conduit_dagster.connectors.file import folder_scan
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Limit

FILES = st.integers(0, 3)
MOVES = st.one_of(
    st.tuples(st.just("put"), FILES, st.integers(0, 4)),
    st.tuples(st.just("put"), FILES, st.integers(1, 4)),
    st.tuples(st.just("delete"), FILES, st.just(0)),
    st.tuples(st.just("put back"), FILES, st.integers(0, 5)),
    st.tuples(st.just("touch"), FILES, st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(0)),
    st.tuples(st.just("drain"), st.just(0), st.just(0)),
    st.tuples(st.just("go on"), st.just(0), st.just(0)),
    st.tuples(st.just("step"), st.integers(1, 9), st.just(0)),
    st.tuples(st.just("step"), st.integers(1, 9), st.just(0)),
    st.tuples(st.just("cut"), st.integers(2, 9), st.integers(0, 5)),
    st.tuples(st.just("back"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("range"), st.integers(1, 6), st.just(0)),
)


def _outcome(work: Any) -> Any:
    """What was returned, or the code of the error: a partly read file may be gone."""
    try:
        return work()
    except FatalError as error:
        return error.code


def _move(inbox: Inbox, readers: list[Reader], kind: str, first: int, second: int) -> None:
    name = str(first)
    if kind == "put":
        inbox.put(name, second)
    elif kind == "put back":
        inbox.put_back(name, second)
    elif kind == "delete":
        (inbox.folder / name).unlink(missing_ok=True)
    elif kind == "touch" and (inbox.folder / name).exists():
        (inbox.folder / name).touch()
    for reader in readers:
        if kind == "restart":
            reader.restart()
        elif kind == "drain":
            reader.horizon = reader.source.horizon()
        elif kind == "go on":
            reader.horizon = None
        elif kind == "back":
            reader.back(first)


def compare(moves: list[tuple[str, int, int]], drains: bool = False) -> None:
    """Three readers: files leave the position of one at once, of another never, and the third has no state store.

    ``drains``: every step is a run's that drains.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        inbox = Inbox(root)
        readers = [Reader(root, 1, MemoryValues()), Reader(root, NEVER, MemoryValues()), Reader(root, 1, None)]
        for kind, first, second in moves:
            _move(inbox, readers, kind, first, second)
            if drains:
                _move(inbox, readers, "drain", 0, 0)
            if kind in ("step", "cut"):
                cut = second if kind == "cut" else None
                steps = [_outcome(lambda r=r: r.step(Limit(first, 10**9), cut)) for r in readers]  # noqa: B023
                assert steps[0] == steps[1] == steps[2]
            elif kind == "range":
                pairs = [(r.path[-1 - first % len(r.path)], r.position) for r in readers]
                ranges = [
                    _outcome(lambda r=r, pair=pair: [one[:2] for one in r.records(*pair)])
                    for r, pair in zip(readers, pairs, strict=True)
                ]
                assert ranges[0] == ranges[1] == ranges[2]
            assert readers[0].place == readers[1].place
            lags = [_outcome(lambda r=r: r.source.lag(r.position)) for r in readers]
            assert lags[0] == lags[1] == lags[2]


HISTORIES = st.lists(MOVES, min_size=10, max_size=40)


@settings(max_examples=40)
@given(moves=HISTORIES)
def test_random_histories(moves: list[tuple[str, int, int]]) -> None:
    """New files, deletions, replacements, returns, restarts, cut steps, rewinds and drains, with lists and without."""
    compare(moves)


@settings(max_examples=40)
@given(moves=HISTORIES)
def test_runs_that_drain_a_folder_with_many_files(moves: list[tuple[str, int, int]]) -> None:
    """As above, in folders where one look examines one finished and one new file: a run's horizon examines all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_scan, "EXAMINED_AT_ONCE", 1)
        compare(moves, drains=True)


@pytest.mark.slow
@settings(max_examples=400)
@given(moves=HISTORIES)
def test_many_random_histories(moves: list[tuple[str, int, int]]) -> None:
    """As above."""
    compare(moves)
