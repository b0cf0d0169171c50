"""Folders where one look examines a part of the finished files."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.file_reading import Reader, append
from lab.inbox import Inbox
from structlog.testing import capture_logs

from conduit_dagster.connectors.file import folder_scan
from conduit_dagster.connectors.file.listing import FolderEntries
from conduit_dagster.sdk import Limit


@pytest.fixture
def inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inbox:
    return Inbox(tmp_path, monkeypatch)


@pytest.fixture
def large(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> Inbox:
    """Twenty finished files in lists; a look examines three of them."""
    monkeypatch.setattr(folder_scan, "EXAMINED_AT_ONCE", 3)
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
    """It is another entry of the folder. Nothing of the renamed one is read again."""
    (large.folder / "05").rename(large.folder / "a")
    append(large.folder / "a", "more\n")
    large.write("00 before all others", "new")
    assert large.step() == ["more", "new"]


def test_a_folder_of_folders_is_not_read_in_silence(inbox: Inbox) -> None:
    (inbox.folder / "day=1").mkdir()
    with capture_logs() as logs:
        assert [inbox.step(), inbox.step()] == [[], []]
    assert [log["event"] for log in logs] == ["nothing is read: the path holds only folders"]


@pytest.mark.parametrize("path", ["in[1].log", "*[1].log", "day[1]", "day[1]/", "day[1]/*.log"])
def test_brackets_in_a_name_are_not_read_in_silence(tmp_path: Path, path: str) -> None:
    (tmp_path / "day[1]").mkdir()
    for name in ("in[1].log", "day[1]/a.log"):
        append(tmp_path / name, "1\n")
    reader = Reader(tmp_path, path)
    with capture_logs() as logs:
        assert [reader.step(), reader.step()] == [[], []]
    [log] = logs
    assert "brackets" in log["event"]
    assert Reader(tmp_path, log["fix"].removeprefix("path: ")).step() == ["1"]


def test_a_glob_with_brackets_that_matches_nothing_yet(tmp_path: Path) -> None:
    reader = Reader(tmp_path, "in[1].log")
    with capture_logs() as logs:
        assert reader.step() == []
        append(tmp_path / "in1.log", "1\n")
        assert reader.step() == ["1"]
    assert not logs


def test_new_files_are_read_in_order_and_once(large: Inbox) -> None:
    """Also those that no look has examined before they are reached, and one with two names."""
    for number in range(9):
        large.write(f"b{number}", f"b{number}")
    (large.folder / "b8x").hardlink_to(large.folder / "b2")
    (large.folder / "b5x").mkdir()
    assert large.reader.step(Limit(4, 1_000)) == ["b0", "b1", "b2", "b3"]
    assert large.step() == ["b4", "b5", "b6", "b7", "b8"]
    assert large.step() == []


def test_links_to_files_elsewhere(large: Inbox) -> None:
    """A link as an entry has its own inode. One that leads nowhere is not a file yet."""
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
    """A merge of all lists forgets deleted files, but not all files: they would be read again."""
    for _ in range(3):
        inbox.leave()
    monkeypatch.setattr("conduit_dagster.connectors.file.file_scan.list_many", lambda *_: [])
    inbox.leave()
    monkeypatch.undo()
    inbox.reader.restart()
    assert inbox.step() == []
    assert inbox.reader.source.counts(inbox.reader.position)["files_read"] == 4


def test_a_folder_that_tells_other_inodes_than_its_files(large: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """As layers of some file systems do: no file is mistaken for another, and none is left out."""
    real = FolderEntries.now
    monkeypatch.setattr(FolderEntries, "now", lambda self: [(path, inode + 10**9) for path, inode in real(self)])
    for number in range(9):
        large.write(f"b{number}", f"b{number}")
    append(large.folder / "13", "more\n")
    large.reader.restart()
    found = [line for _ in range(5) for line in large.step()]
    assert sorted(found) == ["b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "more"]
