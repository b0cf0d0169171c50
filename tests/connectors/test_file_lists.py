"""Finished files leave a folder's position, into lists: single histories, places, and sizes."""

from __future__ import annotations

import json
import re
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from lab.file_changes import pack
from lab.file_reading import MUCH, Reader, append
from lab.inbox import WAITS, Inbox
from lab.kept import MemoryValues

from conduit_dagster.connectors.file.file_position import FileLists, parse_position
from conduit_dagster.connectors.file.file_state import TrackedFile
from conduit_dagster.connectors.kept_lists import FinishedLists
from conduit_dagster.expressions import Clock
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import ConnectorContext, Limit, ReadOptions

NEVER = 10**9


def read_up(reader: Reader, drain: bool = False) -> list[str]:
    found = list[str]()
    while lines := reader.step(drain=drain):
        found += lines
    return found


@pytest.fixture
def inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inbox:
    return Inbox(tmp_path, monkeypatch)


def test_a_finished_file_leaves_and_comes_back_when_it_grows(inbox: Inbox) -> None:
    """Reading continues where it was, under its number, also in a new process."""
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
    """Its row is no longer true once other content was read from it."""
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
    boundaries = [
        block.boundary(0) for split in source.split(start, end, 1) for block in source.read(split, ReadOptions())
    ]
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
    """Also where files could leave: otherwise an idle pipeline would plan steps forever."""
    inbox.write("a", "1")
    inbox.step()
    source, start = inbox.reader.source, inbox.reader.position
    assert source.latest(start, MUCH) is start
    assert inbox.kept.written == 0


def test_a_few_finished_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list per file of a trickle would be as many rows in the store."""
    inbox = Inbox(tmp_path, monkeypatch, 10)
    for _ in range(10):
        inbox.leave()
    assert (len(inbox.names), inbox.kept.values) == (10, {})
    inbox.leave()
    assert (inbox.names, len(inbox.kept.values)) == (["z11"], 1)


def test_a_file_without_a_birth_time_stays(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next file with its inode would be mistaken for it, long after it was deleted."""
    monkeypatch.setattr("conduit_dagster.connectors.file.file_state.birth_of", lambda file: 0)
    monkeypatch.setattr("conduit_dagster.connectors.file.file_state._known", {})
    inbox.write("a", "1")
    inbox.step()
    inbox.leave()
    assert inbox.names == ["a", "z1"]


def test_positions_without_lists_are_read_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A position of the previous version, and its place: the names of stored plans depend on it."""
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
    """An inbox whose files are deleted after reading does not grow forever."""
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
    """A file that grows and is finished again has another place: otherwise two deliveries would have one name."""
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
    """As a rewind needs them, in a new process: from the beginning, and from a position in between."""
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


@pytest.mark.slow
def test_what_a_step_stores_does_not_grow_with_the_files(tmp_path: Path) -> None:
    """From 1,000 to 20,000 files, a thousand per step: the position and its lists, in bytes."""
    (tmp_path / "in").mkdir()
    kept = MemoryValues()
    reader, sizes = Reader(tmp_path, "in/", kept, **WAITS), list[int]()
    for step in range(20):
        for number in range(1_000):
            (tmp_path / "in" / f"{step:02d}-{number:03d}").write_text("{}\n")
        before = kept.written
        assert len(reader.step(Limit(10**6, 10**9))) == 1_000
        # numbers and inodes may gain digits, also when other processes create files meanwhile
        sizes.append(len(re.sub(r"\d+", "0", json.dumps(reader.position))))
        # a merge writes more at once, but rarely
        assert kept.written - before <= 20 * 20_000
    assert max(sizes[1:]) < 1.01 * sizes[0]
    assert kept.written / 20 < 100_000


ROWS = [
    TrackedFile("a", 0, 11, 6, 3, "ab12", False, 6, 100, 200, 300),
    TrackedFile("b", 1, 12, 4, 2, "cd34", True, 4, 101, 201, 301, 4, "ff"),
]


def test_stored_sums_and_lists_stay_what_they_are(inbox: Inbox) -> None:
    """Both are in stores: a sum can't be computed again, because most of its files are gone."""
    read = FinishedLists().moved(ROWS, ())
    assert read.sum == "ff14a278d585b34a820db16fecb81590d166b003624c9fea8e32025f0b68e198"
    lists = FileLists(ConnectorContext("p", "in", "", Clock(7), "exactly-once"))
    lists.attach(inbox.kept.access)
    assert [rows for _, rows in lists.added(read, ROWS).lists] == [2]
    (value,) = inbox.kept.values.values()
    assert zlib.decompress(value).hex() == (
        "929da161000b0603a461623132c20664ccc8cd012c00a09da162010c0402a463643334c30465ccc9cd012d04a26666"
    )


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("how", ["renamed", "compressed", "copied and truncated"])
def test_a_finished_file_grows_and_leaves_the_glob(tmp_path: Path, how: str, drain: bool) -> None:
    """While no pipeline runs: the rest of it is read where it is."""
    for number in range(70):
        append(tmp_path / f"{number}.log", f"{number}\n")
    reader = Reader(tmp_path, "*.log", MemoryValues(), **WAITS)
    assert len(read_up(reader)) == 70
    append(tmp_path / "later.log", "later\n")
    assert read_up(reader) == ["later"]
    assert len(reader.position["files"]) < 64
    reader.restart()
    log, rotated = tmp_path / "5.log", tmp_path / "5.log.1"
    append(log, "rest\n")
    if how == "copied and truncated":
        shutil.copy(log, rotated)
        log.write_text("")
    else:
        log.rename(rotated)
    if how == "compressed":
        pack(rotated)
    append(log, "next\n")
    assert read_up(reader, drain) == ["rest", "next"]
    append(log, "more\n")
    reader.restart()
    assert read_up(reader, drain) == ["more"]
