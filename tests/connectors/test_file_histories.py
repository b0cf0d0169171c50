"""The file source against a plain oracle: random histories of a file, its rotations and its reader."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.file_changes import pack
from lab.file_reading import Reader, append

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Limit

WAITS = {"rotate-wait": "0s", "unterminated-wait": "0s"}
MOVES = st.one_of(
    st.tuples(st.just("lines"), st.integers(1, 30)),
    st.just(("half", 0)),
    st.just(("rotate", 0)),
    st.just(("restart", 0)),
    st.tuples(st.just("step"), st.integers(1, 40)),
    st.tuples(st.just("drain"), st.integers(1, 40)),
    st.just(("read up", 0)),
)


class History:
    """A file, what was written to it, and what a reader received."""

    def __init__(self, root: Path, kind: str) -> None:
        self.log, self.kind = root / "app.log", kind
        self.reader = Reader(root, **WAITS)
        self.written: list[str] = []
        self.got: list[str] = []
        self.half, self.rotations = "", 0
        self.may_lose: set[str] = set()
        """Lines that were removed before anybody looked at them."""
        self.must_fail = False
        """Whether lines that were looked at, and not read, were removed."""
        self.lines(1)
        self.step(100)

    def _line(self) -> str:
        number = len(self.written)
        return f"{number} " + "x" * (number * 37 % 90)

    def lines(self, count: int) -> None:
        for _ in range(count):
            line = self._line()
            append(self.log, line[len(self.half) :] + "\n")
            self.written.append(line)
            self.half = ""

    def begin(self) -> None:
        if not self.half:
            self.half = self._line()[:2]
            append(self.log, self.half)

    def step(self, records: int, drain: bool = False) -> None:
        self.got += self.reader.step(Limit(records, 700), drain=drain)

    def read_up(self) -> None:
        while lines := self.reader.step(Limit(9, 10_000)):
            self.got += lines

    def rotate(self) -> None:
        self.rotations += 1
        rotated = self.log.with_name(f"app.log.{self.rotations:03d}")
        if self.kind == "replace":
            last = self.reader.position["files"][-1]
            self.must_fail |= last["size"] > last["offset"]
            self.may_lose |= set(self.written) - set(self.got)
            self.log.with_name("new").touch()
            self.log.with_name("new").replace(self.log)
        else:
            if self.half:  # nobody continues writing it, so it is complete
                self.written.append(self.half)
            if self.kind.startswith("rename"):
                self.log.rename(rotated)
                self.log.touch()
            else:
                shutil.copy(self.log, rotated)
                self.log.write_text("")
            if self.kind.endswith("compress"):
                pack(rotated)
        self.half = ""

    def check(self) -> None:
        """Every line once, whole and in order; none is missing that the reader could have known of."""
        wanted = [line for line in self.written if line not in self.may_lose]
        assert [line for line in self.got if line not in self.may_lose] == wanted[: len(self.got)]
        assert len(set(self.got)) == len(self.got)
        assert set(self.got) <= set(self.written)

    def move(self, name: str, count: int) -> None:
        moves: dict[str, Any] = {
            "lines": lambda: self.lines(count),
            "half": self.begin,
            "rotate": self.rotate,
            "restart": self.reader.restart,
            "step": lambda: self.step(count),
            "drain": lambda: self.step(count, drain=True),
            "read up": self.read_up,
        }
        moves[name]()


@pytest.mark.parametrize(
    "kind", ["rename", "rename and compress", "copy and truncate", "copy, truncate and compress", "replace"]
)
@settings(max_examples=60, deadline=None)
@given(moves=st.lists(MOVES, max_size=25))
def test_every_line_once(kind: str, moves: list[tuple[str, int]]) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        history = History(root, kind)
        try:
            for move in moves:
                history.move(*move)
                history.check()
            history.read_up()
        except FatalError as error:
            assert error.code == "file.range_gone"
            assert history.must_fail, "nothing that was seen is gone"
        else:
            assert not history.must_fail, "lines that were seen are gone, and nothing said so"
            assert set(history.written) - set(history.got) <= history.may_lose
        history.check()
    finally:
        shutil.rmtree(root)
