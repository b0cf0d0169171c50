"""Finished Parquet files leave the position, into lists: the same records and places as if they had stayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lab.kept import MemoryValues
from lab.parquet_inbox import ALL, NEVER, Inbox, Reader, values

from conduit_dagster.connectors.file import folder_scan
from conduit_dagster.connectors.parquet import parquet_folder, parquet_scan
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Limit
from conduit_dagster.sdk.source import KeptValues


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path)


@pytest.fixture
def reader(tmp_path: Path, inbox: Inbox) -> Reader:
    return Reader(tmp_path, 1, MemoryValues())


def test_an_unchanged_finished_file_is_not_opened_again(
    inbox: Inbox, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor in a new process; a touched one is, and is the same file."""
    inbox.put("a", 3)
    inbox.put("b", 2)
    reader.step()
    inbox.put("c", 1)
    assert values(reader.step()) == [5]
    assert reader.names == ["c"]
    opened, read_footer = list[str](), parquet_scan.read_footer
    monkeypatch.setattr(parquet_scan, "read_footer", lambda url: (opened.append(Path(url).name), read_footer(url))[1])
    reader.restart()
    assert reader.source.lag(reader.position) == 0
    assert opened == ["c"]
    reader.source.horizon()
    assert opened == ["c"]
    (inbox.folder / "a").touch()
    assert reader.latest() == reader.position
    assert opened == ["c", "a"]
    inbox.put("d", 1)
    assert values(reader.step()) == [6]
    reader.restart()
    opened.clear()
    assert reader.latest() == reader.position
    assert opened == ["d"]


def test_many_finished_files_are_examined_in_turns(
    tmp_path: Path, inbox: Inbox, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaced and deleted files show at once; overwritten ones in their turn, and in a drained run."""
    monkeypatch.setattr(folder_scan, "EXAMINED_AT_ONCE", 2)
    for name in "abcdefg":
        inbox.put(name, 1)
    reader.step()
    inbox.put("z", 1)
    reader.step()
    looked, look = list[str](), folder_scan.examine
    monkeypatch.setattr(folder_scan, "examine", lambda path: (looked.append(Path(path).name), look(path))[1])
    turns = list[set[str]]()
    for _ in range(5):
        looked.clear()
        assert reader.latest() == reader.position
        turns.append(set(looked))
    assert [len(turn) for turn in turns] == [8, 3, 3, 3, 2]
    assert set.union(*turns[1:]) == {*"abcdefg", "z"}
    inbox.put("c", 1)
    assert values(reader.step()) == [8]
    (inbox.folder / "d").unlink()
    inbox.put("y", 1)
    assert values(reader.step()) == [9]
    inbox.put_back("d", 3)
    assert values(reader.step()) == [3]
    for drained in (False, True):
        reader.restart()
        reader.latest()
        (inbox.folder / "e").write_bytes(inbox.versions[int(drained)])
        horizon = reader.source.horizon() if drained else None
        looks = 0
        while (end := reader.source.latest(reader.position, ALL, horizon)) == reader.position:
            looks += 1
            assert looks < 8
        assert [one[0]["i"] for one in reader.records(reader.position, end)] == [int(drained)]
        assert looks == 0 or not drained
        reader.position = json.loads(json.dumps(end))


def test_new_files_of_a_large_folder_are_read_in_order_and_once(
    inbox: Inbox, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that no look examines before they are reached, and an unexamined link to a finished file."""
    monkeypatch.setattr(folder_scan, "EXAMINED_AT_ONCE", 2)
    for name in "abcdefg":
        inbox.put(name, 1)
    reader.step()
    for name in "hijklm":
        inbox.put(name, 1)
    (inbox.folder / "l2").hardlink_to(inbox.folder / "j")
    (inbox.folder / "l3").mkdir()
    (inbox.folder / "latest").symlink_to(inbox.folder / "a")
    for most, found in ((4, [7, 8, 9, 10]), (9, [11, 12]), (9, []), (9, []), (9, [])):
        assert values(reader.step(Limit(most, 10**9))) == found


def test_a_run_that_drains_opens_what_is_unread_only(
    inbox: Inbox, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a new process: its horizon is no reason to read the footers of finished files."""
    for name in "abc":
        inbox.put(name, 2)
        reader.step()
    inbox.put("d", 1)
    opened, read_footer = list[str](), parquet_scan.read_footer
    monkeypatch.setattr(parquet_scan, "read_footer", lambda url: (opened.append(Path(url).name), read_footer(url))[1])
    reader.restart()
    reader.horizon = reader.source.horizon()
    assert values(reader.step()) == [6]
    assert reader.latest() == reader.position
    assert opened == ["c", "d"]


def test_a_horizon_leaves_out_what_is_written_later(inbox: Inbox, reader: Reader) -> None:
    """New files, and others in the places of old ones; a file of which rows were read is read to its end."""
    for name in "abc":
        inbox.put(name, 2)
    reader.horizon = reader.source.horizon()
    assert values(reader.step(Limit(1, 10**9))) == [0]
    inbox.put("b", 2)
    inbox.put("d", 2)
    (inbox.folder / "a").touch()
    assert values(reader.step()) == [1, 4, 5]
    assert reader.step() == []
    reader.horizon = reader.source.horizon()
    assert values(reader.step()) == [6, 7, 8, 9]


def test_splits_are_made_without_listing_the_folder(
    inbox: Inbox, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of a step after another one in flight; a new process lists it once for each range."""
    for name in "abcd":
        inbox.put(name, 2)
    lists, listing = list[str](), parquet_folder.ListedFiles.files

    def counted(self: parquet_folder.ListedFiles, *args: Any) -> parquet_folder.Listed:
        lists.append("in/")
        return listing(self, *args)

    monkeypatch.setattr(parquet_folder.ListedFiles, "files", counted)
    start = reader.position
    first = reader.position = reader.latest(Limit(4, 10**9))
    second = reader.latest()
    lists.clear()
    for begin, end, rows in ((start, first, [0, 1, 2, 3]), (first, second, [4, 5, 6, 7])):
        assert [after["i"] for after, _, _ in reader.records(begin, end)] == rows
        reader.source.verify(begin, end)
    assert lists == []
    reader.restart()
    reader.source.verify(first, second)
    assert lists == ["in/"]
    (inbox.folder / "d").unlink()
    with pytest.raises(FatalError) as gone:
        reader.source.verify(first, second)
    assert gone.value.code == "parquet.range_gone"


def test_counts_say_how_many_files_were_read(inbox: Inbox, reader: Reader) -> None:
    """Including those in lists: they are not in the position that is shown."""
    inbox.put("a", 2)
    reader.step()
    inbox.put("b", 2)
    reader.step()
    inbox.put("c", 2)
    reader.step(Limit(1, 10**9))
    assert reader.names == ["c"]
    assert reader.source.counts(reader.position) == {"files_read": 2, "files_unread": 1}


def test_a_copy_that_comes_back_is_read_again(inbox: Inbox, reader: Reader) -> None:
    inbox.put("a", 3)
    reader.step()
    inbox.put("b", 1)
    reader.step()
    (inbox.folder / "a").unlink()
    inbox.put("c", 1)
    assert values(reader.step()) == [4]
    inbox.put_back("a", 0)
    assert values(reader.step()) == [0, 1, 2]


def test_ranges_over_many_steps(tmp_path: Path, inbox: Inbox, reader: Reader) -> None:
    """As a rewind needs them, in a new process: forwards, and backwards nothing."""
    for number in range(9):
        inbox.put(str(number), 2)
        reader.step()
    for begin in (0, 3, 8):
        reader.restart()
        start, end = reader.earlier[begin], reader.earlier[-1]
        found = [after["i"] for after, _, _ in reader.records(start, end)]
        assert found == list(range(2 * begin, 18))
        reader.source.verify(start, end)
        assert reader.source.split(end, start, 1) == []


def test_a_file_that_is_gone_stays_in_the_place(inbox: Inbox, reader: Reader) -> None:
    """A step's end and its last record are the same boundary, though only the end has forgotten the file."""
    inbox.put("a", 3)
    reader.step()
    (inbox.folder / "a").unlink()
    inbox.put("b", 1)
    start, end = reader.position, reader.latest()
    assert [file["name"] for file in end["files"]] == ["b"]
    boundary = reader.records(start, end)[-1][2]
    assert reader.source.place(reader.source.within(start, end, boundary)) == reader.source.place(end)


def test_reading_verbs_read_lists_and_write_none(inbox: Inbox, reader: Reader) -> None:
    inbox.put("a", 3)
    reader.step()
    inbox.put("b", 1)
    reader.step()
    inbox.put("c", 2)
    kept = reader.kept
    assert kept is not None
    written = kept.written
    reader.restart()
    reader.source.attach_kept(KeptValues(kept.get, None))
    assert reader.source.lag(reader.position) == 2
    assert [file["name"] for file in reader.latest()["files"]] == ["b", "c"]
    (inbox.folder / "b").unlink()
    assert kept.written == written
    end = reader.latest()
    reader.restart()
    assert reader.source.place(reader.latest()) == reader.source.place(end)
    reader.source.attach_kept(KeptValues(kept.get, None))
    assert values(reader.step()) == [4, 5]


def test_missing_list_says_what_to_do(inbox: Inbox, reader: Reader) -> None:
    for name in "ab":
        inbox.put(name, 1)
        reader.step()
    assert reader.kept is not None
    reader.kept.values.clear()
    reader.restart()
    with pytest.raises(FatalError) as caught:
        reader.latest()
    assert caught.value.code == "file.list_gone"


def test_an_old_position_goes_on(tmp_path: Path, inbox: Inbox) -> None:
    """With its old place, which is part of the names of stored plans."""
    before, after = Reader(tmp_path, 1, None), Reader(tmp_path, 1, MemoryValues())
    inbox.put("a", 2)
    before.step()
    assert before.position["files"] and "read" not in before.position
    assert after.source.place(before.position) == before.position
    after.position = before.position
    inbox.put("b", 2)
    start, end = after.position, after.latest()
    boundary = after.records(start, end)[-1][2]
    assert after.source.place(after.source.within(start, end, boundary)) == after.source.place(end)
    assert values(after.step()) == [2, 3]
    assert after.names == ["b"]


@pytest.mark.parametrize("leaves_at", [1, 5, NEVER])
def test_the_place_of_a_boundary_does_not_depend_on_the_steps(tmp_path: Path, inbox: Inbox, leaves_at: int) -> None:
    for number in range(12):
        inbox.put(f"{number:02d}", number % 4 + 1)
    places = list[Any]()
    for most in (1, 7, 1_000):
        reader = Reader(tmp_path, leaves_at, MemoryValues())
        while reader.step(Limit(most, 10**9)):
            pass
        places.append(reader.place)
    assert places[0] == places[1] == places[2]
    assert places[0]["seen"] == 12


def test_what_a_step_stores_does_not_grow(inbox: Inbox, reader: Reader) -> None:
    """400 files, ten per step."""
    reader.leaves_at, sizes = 1, list[int]()
    for step in range(40):
        for number in range(10):
            inbox.put(f"{step:02d}-{number}", 1)
        assert len(reader.step()) == 10
        sizes.append(len(json.dumps(reader.position)))
    assert max(sizes) < sizes[0] + 8 * 80
    assert reader.position["seen"] == 400
