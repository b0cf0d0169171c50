"""Finished files leave the position of a folder: the same records come, and the same places, as if they stayed."""

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
from lab.file_reading import MUCH, Reader, append
from lab.kept import MemoryValues, leave_at

from conduit_dagster.connectors.file import folder_look
from conduit_dagster.connectors.file.file_position import parse_position
from conduit_dagster.connectors.file.listing import FolderEntries
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Block, Limit, ReadOptions

NEVER = 10**9
WAITS = {"rotate-wait": "0s", "unterminated-wait": "0s"}
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
    """A reader whose finished files leave the position once there are so many, and what it was given."""

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
                    records.append((record.after.decode(), record.position))
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
        """Most file systems give the inode again."""
        if self.path(number).exists():
            self.path(number).unlink()
            self.path(number).write_text(self.text(count))

    def rewrite(self, number: int, count: int) -> None:
        """The same inode and birth with other content."""
        if self.path(number).exists():
            self.before.append(self.path(number).read_bytes())
            self.path(number).write_text(self.text(count))

    def write_as_before(self, number: int, which: int) -> None:
        """The same inode and birth with content that a file had."""
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
        """To the step before the last one, as after a step that was void."""
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
    """Late older names, renames, files that grow again or are rewritten, inodes used again, restarts and cut steps."""
    compare(moves, on_gone)


@settings(max_examples=40)
@given(moves=HISTORIES, on_gone=st.sampled_from(["skip", "skip", "fail"]))
def test_runs_that_drain_a_folder_with_many_files(moves: list[tuple[str, int, int]], on_gone: str) -> None:
    """As above, in folders of which one look examines one file: a run's horizon examines all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_look, "EXAMINED_AT_ONCE", 1)
        compare(moves, on_gone, drain=True)


@pytest.mark.slow
@settings(max_examples=500)
@given(moves=HISTORIES, on_gone=st.sampled_from(["skip", "skip", "fail"]))
def test_many_histories(moves: list[tuple[str, int, int]], on_gone: str) -> None:
    """As above."""
    compare(moves, on_gone)


# -- single histories -------------------------------------------------------------------------------------------------


class Inbox:
    """A folder and a reader of it, of which finished files leave at once."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, leaves_at: int = 1) -> None:
        leave_at(patch, leaves_at)
        self.folder, self.kept = root / "in", MemoryValues()
        self.folder.mkdir()
        self.reader = Reader(root, "in/", self.kept, **WAITS)
        self.others = 0

    def write(self, name: str, *lines: str) -> None:
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines))

    def step(self) -> list[str]:
        return self.reader.step()

    def leave(self) -> None:
        """Another file is read: what was read before it leaves."""
        self.others += 1
        self.write(f"z{self.others}", "other")
        assert self.step() == ["other"]

    @property
    def names(self) -> list[str]:
        return [file["name"] for file in self.reader.position["files"]]


@pytest.fixture
def inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inbox:
    return Inbox(tmp_path, monkeypatch)


def test_a_finished_file_leaves_and_comes_back_when_it_grows(inbox: Inbox) -> None:
    """It goes on where it was read up to, under its number, also in a new process."""
    inbox.write("a", "1", "2")
    inbox.step()
    inbox.leave()
    assert inbox.names == ["z1"]
    append(inbox.folder / "a", "3\n")
    inbox.reader.restart()
    (record,) = inbox.reader.records(inbox.reader.source.latest(inbox.reader.position, MUCH))
    assert (record.after, record.position, record.key) == (b"3", "0:a:6", b"3")
    assert inbox.step() == ["3"]
    assert inbox.names == ["a"]
    inbox.leave()
    assert inbox.names == ["z2"]
    assert inbox.reader.source.counts(inbox.reader.position) == {"files_read": 3, "files_unread": 0}


def test_a_file_that_is_written_again_as_it_was_is_read_again(inbox: Inbox) -> None:
    """Its row is true no more once another content was read from it."""
    inbox.write("a", "old 1", "old 2")
    inbox.step()
    inbox.leave()
    inbox.write("a", "new")
    assert inbox.step() == ["new"]
    inbox.leave()
    inbox.write("a", "old 1", "old 2")
    assert inbox.step() == ["old 1", "old 2"]


def test_a_row_that_came_back_is_not_found_as_it_was_before(inbox: Inbox) -> None:
    inbox.write("a", "1")
    inbox.step()
    inbox.leave()
    append(inbox.folder / "a", "2\n")
    assert inbox.step() == ["2"]
    inbox.write("a", "other")
    assert inbox.step() == ["other"]
    inbox.write("a", "1")
    assert inbox.step() == ["1"]


def test_a_row_whose_file_was_read_anew_by_a_step_that_was_cut(inbox: Inbox) -> None:
    """The step's own lists, which hide the row, are not those of the position where it was cut."""
    inbox.write("a", "1", "2", "3")
    inbox.step()
    inbox.leave()
    with (inbox.folder / "a").open("r+") as file:
        file.truncate(2)
    inbox.write("b", "other")
    source, start = inbox.reader.source, inbox.reader.position
    end = source.latest(start, MUCH)
    boundaries = [block.boundary(0) for split in source.split(start, end, 1) for block in source.read(split, ALL)]
    inbox.reader.position = source.within(start, end, boundaries[0])
    assert inbox.names == ["z1", "a"]
    append(inbox.folder / "a", "2\n3\n")
    assert inbox.step() == ["2", "3", "other"]
    inbox.leave()
    append(inbox.folder / "a", "4\n")
    assert inbox.step() == ["4"]
    inbox.leave()
    with (inbox.folder / "a").open("r+") as file:
        file.truncate(6)
    assert inbox.step() == ["1", "2", "3"]


def test_a_step_that_reads_nothing_returns_its_start(inbox: Inbox) -> None:
    """Also where files could leave: else an idle pipeline would plan steps for ever."""
    inbox.write("a", "1")
    inbox.step()
    source, start = inbox.reader.source, inbox.reader.position
    assert source.latest(start, MUCH) is start
    assert inbox.kept.written == 0


def test_a_few_finished_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list for each file of a trickle would be as many rows of the store."""
    inbox = Inbox(tmp_path, monkeypatch, 10)
    for _ in range(10):
        inbox.leave()
    assert (len(inbox.names), inbox.kept.values) == (10, {})
    inbox.leave()
    assert (inbox.names, len(inbox.kept.values)) == (["z11"], 1)


def test_a_file_without_a_birth_time_stays(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next file that gets its inode would be taken for it, long after it was deleted."""
    monkeypatch.setattr("conduit_dagster.connectors.file.birth.birth_of", lambda file: 0)
    monkeypatch.setattr("conduit_dagster.connectors.file.birth._known", {})
    inbox.write("a", "1")
    inbox.step()
    inbox.leave()
    assert inbox.names == ["a", "z1"]


def test_positions_without_lists_are_read_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A position of the version before, and its place: the names of stored plans depend on it."""
    inbox = Inbox(tmp_path, monkeypatch)
    before = Reader(tmp_path, "in/", **WAITS)
    inbox.write("a", "1")
    inbox.write("b", "2")
    before.step()
    place = before.source.place(before.position)
    assert place["files"][0]["name"] == "a"
    inbox.reader.position = before.position
    assert inbox.reader.source.place(before.position) == place
    inbox.write("c", "3")
    append(inbox.folder / "a", "more\n")
    assert inbox.step() == ["more", "3"]
    assert inbox.names == ["a", "c"]


def test_lists_are_merged_and_deleted_files_are_forgotten(inbox: Inbox) -> None:
    """An inbox whose files are deleted once they are read does not grow for ever."""
    for _ in range(64):
        inbox.leave()
        (inbox.folder / f"z{max(1, inbox.others - 1)}").unlink(missing_ok=True)
    read = parse_position(inbox.reader.position).read
    assert read is not None
    assert sum(rows for _, rows in read.lists) <= 4
    assert inbox.reader.position["seen"] == 64


def test_missing_list_says_what_to_do(inbox: Inbox) -> None:
    inbox.write("a", "1")
    inbox.step()
    inbox.leave()
    inbox.kept.values.clear()
    inbox.reader.restart()
    with pytest.raises(FatalError, match="list of files that were read") as caught:
        inbox.step()
    assert (caught.value.code, caught.value.node) == ("file.list_gone", "p:in")
    assert "conduit-dagster positions rewind p in --to-start" in (caught.value.fix or "")


def test_a_place_tells_apart_what_differs(inbox: Inbox) -> None:
    """A file that grows and is finished again is at another place: else two deliveries would have one name."""
    places = list[Any]()
    inbox.write("a", "1")
    for number in range(4):
        inbox.step()
        inbox.leave()
        places.append(inbox.reader.source.place(inbox.reader.position)["sum"])
        append(inbox.folder / "a", f"{number}\n")
    assert len(set(places)) == 4


@pytest.mark.parametrize("leaves_at", [1, 5, NEVER])
def test_the_place_of_a_boundary_does_not_depend_on_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves_at: int
) -> None:
    """Steps of one record, of seven, and of everything; from files that leave at once, late, or never."""
    inbox = Inbox(tmp_path, monkeypatch, leaves_at)
    for number in range(30):
        inbox.write(f"{number:02d}", *(f"{number}.{i}" for i in range(number % 4 + 1)))
    places = list[Any]()
    for most in (1, 7, 1_000):
        reader = Reader(tmp_path, "in/", MemoryValues(), **WAITS)
        while reader.step(Limit(most, 10_000)):
            pass
        places.append(reader.source.place(reader.position))
    assert places[0] == places[1] == places[2]
    assert places[0]["seen"] == 30


def test_ranges_over_many_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a rewind asks for them, in a new process: from the beginning, and from a position in between."""
    inbox = Inbox(tmp_path, monkeypatch)
    positions = [inbox.reader.position]
    for number in range(12):
        inbox.write(f"{number:02d}", f"{number}")
        append(inbox.folder / "00", f"more {number}\n")
        inbox.step()
        positions.append(inbox.reader.position)
    for begin in (0, 3, 9):
        reader = Reader(tmp_path, "in/", inbox.kept, **WAITS)
        reader.position = positions[begin]
        found = {record.after.decode() for record in reader.records(positions[-1])}
        lines = {f"{number}" for number in range(begin, 12)} | {f"more {number}" for number in range(begin, 12)}
        assert found == lines
        reader.source.verify(positions[begin], positions[-1])
        assert reader.source.split(positions[-1], positions[begin], 1) == []


# -- folders of which one look examines a part -------------------------------------------------------------------------


@pytest.fixture
def large(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> Inbox:
    """Twenty finished files in lists; a look examines three of them."""
    monkeypatch.setattr(folder_look, "EXAMINED_AT_ONCE", 3)
    for number in range(20):
        inbox.write(f"{number:02d}", f"{number}")
    while inbox.step():
        pass
    inbox.leave()
    assert inbox.step() == []
    return inbox


def test_a_file_that_grows_is_found_when_its_turn_comes(large: Inbox) -> None:
    append(large.folder / "13", "more\n")
    found = [large.step() for _ in range(7)]
    assert sorted(map(str, found)) == [*["['more']"], *["[]"] * 6]


def test_a_run_that_drains_finds_all_that_was_there_when_it_began(large: Inbox) -> None:
    append(large.folder / "13", "more\n")
    assert large.reader.step(drain=True) == ["more"]


def test_a_renamed_or_new_file_is_found_at_once(large: Inbox) -> None:
    """It is another entry of the folder. Of the renamed one nothing is read again."""
    (large.folder / "05").rename(large.folder / "a")
    append(large.folder / "a", "more\n")
    large.write("00 before all others", "new")
    assert large.step() == ["more", "new"]


def test_new_files_are_read_in_order_and_once(large: Inbox) -> None:
    """Also those that no look has examined before they are reached, and one that has two names."""
    for number in range(9):
        large.write(f"b{number}", f"b{number}")
    (large.folder / "b8x").hardlink_to(large.folder / "b2")
    (large.folder / "b5x").mkdir()
    assert large.reader.step(Limit(4, 1_000)) == ["b0", "b1", "b2", "b3"]
    assert large.step() == ["b4", "b5", "b6", "b7", "b8"]
    assert large.step() == []


def test_links_to_files_elsewhere(large: Inbox) -> None:
    """An entry that is a link has an inode of its own. One that leads nowhere is no file yet."""
    for number in range(9):
        (large.folder.parent / f"real{number}").write_text(f"b{number}\n")
        (large.folder / f"b{number}").symlink_to(large.folder.parent / f"real{number}")
    (large.folder / "c").symlink_to(large.folder.parent / "nowhere")
    assert large.reader.step(drain=True) == [f"b{number}" for number in range(9)]
    large.leave()
    append(large.folder.parent / "real4", "more\n")
    large.reader.restart()
    assert large.step() == ["more"]


def test_a_folder_that_is_away_for_a_moment_is_not_empty(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge of all lists forgets the files that are gone, but not all files: they would be read again."""
    for _ in range(3):
        inbox.leave()
    monkeypatch.setattr("conduit_dagster.connectors.file.file_scan.list_many", lambda *_: [])
    inbox.leave()
    monkeypatch.undo()
    inbox.reader.restart()
    assert inbox.step() == []
    assert inbox.reader.source.counts(inbox.reader.position)["files_read"] == 4


def test_a_folder_that_tells_other_inodes_than_its_files(large: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """As layers of some file systems do: nothing is taken for another file, and nothing left out."""
    real = FolderEntries.now
    monkeypatch.setattr(FolderEntries, "now", lambda self: [(path, inode + 10**9) for path, inode in real(self)])
    for number in range(9):
        large.write(f"b{number}", f"b{number}")
    append(large.folder / "13", "more\n")
    large.reader.restart()
    found = [line for _ in range(5) for line in large.step()]
    assert sorted(found) == ["b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "more"]


@pytest.mark.slow
def test_what_a_step_stores_does_not_grow_with_the_files(tmp_path: Path) -> None:
    """From 1,000 to 20,000 files, a thousand a step: the position and its lists, in bytes."""
    (tmp_path / "in").mkdir()
    kept = MemoryValues()
    reader, sizes = Reader(tmp_path, "in/", kept, **WAITS), list[int]()
    for step in range(20):
        for number in range(1_000):
            (tmp_path / "in" / f"{step:02d}-{number:03d}").write_text("{}\n")
        before = kept.written
        assert len(reader.step(Limit(10**6, 10**9))) == 1_000
        sizes.append(len(json.dumps(reader.position)))
        # a merge writes more at once, and seldom
        assert kept.written - before <= 20 * 20_000
    assert max(sizes[1:]) < 1.01 * sizes[0]
    assert kept.written / 20 < 100_000
