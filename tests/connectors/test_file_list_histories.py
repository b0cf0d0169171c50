"""Finished files leave a folder's position: records and places are the same as if they had stayed."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.file_reading import Reader, append, text_of
from lab.inbox import WAITS
from lab.kept import MemoryValues, leave_at

from conduit_dagster.connectors.file import folder_scan
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Block, Limit, ReadOptions

NEVER = 10**9
ALL = ReadOptions()
FILES = st.integers(0, 3)
MOVES = st.one_of(
    st.tuples(st.just("create"), FILES, st.integers(1, 4)),
    st.tuples(st.just("append"), FILES, st.integers(1, 4)),
    st.tuples(st.just("append"), FILES, st.integers(1, 4)),
    st.tuples(st.just("half"), FILES, st.just(0)),
    st.tuples(st.just("rename"), FILES, FILES),
    st.tuples(st.just("delete"), FILES, st.just(0)),
    st.tuples(st.just("create again"), FILES, st.integers(1, 4)),
    st.tuples(st.just("rewrite"), FILES, st.integers(1, 4)),
    st.tuples(st.just("write as before"), FILES, st.integers(0, 3)),
    st.tuples(st.just("touch"), FILES, st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(0)),
    st.tuples(st.just("step"), st.integers(1, 9), st.just(0)),
    st.tuples(st.just("step"), st.integers(1, 9), st.just(0)),
    st.tuples(st.just("cut"), st.integers(2, 9), st.integers(0, 7)),
    st.tuples(st.just("read up"), st.just(0), st.just(0)),
    st.tuples(st.just("back"), st.just(0), st.just(0)),
)


class Twin:
    """A reader whose finished files leave the position above a certain number, and what it received."""

    def __init__(self, root: Path, leaves_at: int, on_gone: str) -> None:
        self.leaves_at = leaves_at
        self.kept = MemoryValues()
        self.reader = Reader(root, "in/", self.kept, **{**WAITS, "on-gone": on_gone})
        self.earlier: list[Any] = [self.reader.position]

    def latest(self, limit: Limit, drain: bool) -> Any:
        source = self.reader.source
        with pytest.MonkeyPatch.context() as patch:
            leave_at(patch, self.leaves_at)
            return source.latest(self.reader.position, limit, source.horizon() if drain else None)

    def step(self, limit: Limit, cut: int | None, drain: bool) -> list[tuple[str, Any]]:
        """Read one step, or up to its record ``cut``."""
        source, start = self.reader.source, self.reader.position
        end = json.loads(json.dumps(self.latest(limit, drain)))
        if end == start:
            assert source.split(start, end, 2) == []
            return []
        source.verify(start, end)
        records: list[tuple[str, Any]] = []
        for split in source.split(start, end, 2):
            for block in source.read(split, ReadOptions(block_records=3)):
                assert isinstance(block, Block)
                for i, record in enumerate(block.records):
                    records.append((text_of(record), record.position))
                    if cut is not None and len(records) == cut + 1:
                        end = json.loads(json.dumps(source.within(start, end, block.boundary(i))))
                        return self._moved(end, records)
        return self._moved(end, records)

    def _moved(self, end: Any, records: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        self.reader.position = end
        self.earlier.append(end)
        return records

    @property
    def place(self) -> Any:
        return self.reader.source.place(self.reader.position)


class Folder:
    """A folder that others change, and two readers of it: files leave the position of only one."""

    def __init__(self, root: Path, on_gone: str, drain: bool) -> None:
        self.drain = drain
        self.inbox = root / "in"
        self.inbox.mkdir()
        self.twins = Twin(root, 1, on_gone), Twin(root, NEVER, on_gone)
        self.lines = 0
        self.before: list[bytes] = [b"x\n"]

    def path(self, number: int) -> Path:
        return self.inbox / f"{number}.jsonl"

    def text(self, count: int) -> str:
        self.lines += count
        return "".join(f"line {number}\n" for number in range(self.lines - count, self.lines))

    def create(self, number: int, count: int) -> None:
        if not self.path(number).exists():
            self.path(number).write_text(self.text(count))

    def append(self, number: int, count: int) -> None:
        if self.path(number).exists():
            append(self.path(number), self.text(count))

    def half(self, number: int, _: int) -> None:
        if self.path(number).exists():
            append(self.path(number), "half ")

    def rename(self, number: int, other: int) -> None:
        if self.path(number).exists() and not self.path(other).exists():
            self.path(number).rename(self.path(other))

    def delete(self, number: int, _: int) -> None:
        self.path(number).unlink(missing_ok=True)

    def create_again(self, number: int, count: int) -> None:
        """Most file systems reuse the inode."""
        if self.path(number).exists():
            self.path(number).unlink()
            self.path(number).write_text(self.text(count))

    def rewrite(self, number: int, count: int) -> None:
        """The same inode and birth time with other content."""
        if self.path(number).exists():
            self.before.append(self.path(number).read_bytes())
            self.path(number).write_text(self.text(count))

    def write_as_before(self, number: int, which: int) -> None:
        """The same inode and birth time with content that a file had before."""
        if self.path(number).exists():
            self.before.append(self.path(number).read_bytes())
            self.path(number).write_bytes(self.before[-2 - which % (len(self.before) - 1)])

    def touch(self, number: int, _: int) -> None:
        if self.path(number).exists():
            self.path(number).chmod(0o600)
            os.utime(self.path(number))

    def restart(self, _: int, __: int) -> None:
        for twin in self.twins:
            twin.reader.restart()

    def step(self, records: int, _: int) -> bool:
        return self._same(Limit(records, 10_000), None)

    def cut(self, records: int, at: int) -> None:
        self._same(Limit(records, 10_000), at)

    def read_up(self, _: int, __: int) -> None:
        while self.step(7, 0):
            pass

    def back(self, _: int, __: int) -> None:
        """To the step before the last one, as after a voided step."""
        for twin in self.twins:
            twin.reader.position = twin.earlier[max(0, len(twin.earlier) - 2)]

    def _same(self, limit: Limit, cut: int | None) -> bool:
        found, errors = list[Any](), list[str]()
        for twin in self.twins:
            try:
                found.append(twin.step(limit, cut, self.drain))
            except FatalError as error:
                assert error.code == "file.range_gone"
                errors.append(error.message)
        assert errors in ([], errors[:1] * 2)
        if errors:
            raise Gone
        assert found[0] == found[1]
        one, other = self.twins
        assert one.place == other.place
        assert one.reader.source.lag(one.reader.position) == other.reader.source.lag(other.reader.position)
        read = [twin.reader.source.counts(twin.reader.position)["files_unread"] for twin in self.twins]
        assert read[0] == read[1]
        return bool(found[0])


class Gone(Exception):  # noqa: N818  # both readers say it
    """Lines that were seen are gone."""


def compare(moves: list[tuple[str, int, int]], on_gone: str, drain: bool = False) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        folder = Folder(root, on_gone, drain)
        try:
            for name, one, other in moves:
                getattr(folder, name.replace(" ", "_"))(one, other)
            folder.read_up(0, 0)
        except Gone:
            assert on_gone == "fail"
    finally:
        shutil.rmtree(root)


HISTORIES = st.lists(MOVES, min_size=15, max_size=40)


@settings(max_examples=60)
@given(moves=HISTORIES, on_gone=st.sampled_from(["skip", "skip", "fail"]))
def test_the_same_records_and_places_whether_files_leave_or_stay(
    moves: list[tuple[str, int, int]], on_gone: str
) -> None:
    """Late older names, renames, files that grow again or are rewritten, reused inodes, restarts and cut steps."""
    compare(moves, on_gone)


@settings(max_examples=40)
@given(moves=HISTORIES, on_gone=st.sampled_from(["skip", "skip", "fail"]))
def test_runs_that_drain_a_folder_with_many_files(moves: list[tuple[str, int, int]], on_gone: str) -> None:
    """As above, in folders where one look examines one file: a run's horizon examines all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_scan, "EXAMINED_AT_ONCE", 1)
        compare(moves, on_gone, drain=True)


@pytest.mark.slow
@settings(max_examples=500)
@given(moves=HISTORIES, on_gone=st.sampled_from(["skip", "skip", "fail"]))
def test_many_histories(moves: list[tuple[str, int, int]], on_gone: str) -> None:
    """As above."""
    compare(moves, on_gone)
