"""The file source: which file it is. Another file is never mistaken for the one read before."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.file_changes import NEW, OLD, rotate, write
from lab.file_reading import Reader, append

from conduit_dagster.connectors.file import file_state
from conduit_dagster.connectors.file.file_state import FoundFile, TrackedFile
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Limit

# -- one file or another --------------------------------------------------------------------------------------------


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on a disk: in memory no inode is given again."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="conduit-") as folder:
        yield Path(folder)


def test_an_inode_that_is_given_to_the_next_file(disk: Path) -> None:
    """It begins and ends like the previous file, which was read and removed: it is read as well."""
    inbox = disk / "in"
    inbox.mkdir()
    write(inbox / "1.jsonl", OLD)
    inode = (inbox / "1.jsonl").stat().st_ino
    source = Reader(disk, "in/")
    assert source.step() == OLD
    time.sleep(0.02)  # a file's birth time has the resolution of the kernel's clock tick
    (inbox / "1.jsonl").unlink()
    for attempt in range(300):
        write(inbox / "2.jsonl", OLD)
        if (inbox / "2.jsonl").stat().st_ino == inode:
            break
        (inbox / "2.jsonl").rename(inbox / f".{attempt}")
    if not (inbox / "2.jsonl").exists() or not file_state.birth_of(str(inbox / "2.jsonl")):
        pytest.skip("this file system does not give the inode again, or tells no births")
    assert source.step() == OLD


def test_the_same_inode_with_another_birth(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, on any file system: the content is identical."""
    monkeypatch.setattr(file_state, "birth_of", lambda file: 1_000)
    write(log, OLD)
    source = Reader(tmp_path)
    assert source.step() == OLD
    assert source.step() == []
    monkeypatch.setattr(file_state, "birth_of", lambda file: 2_000)
    assert source.step() == OLD


def test_the_same_inode_with_another_birth_and_lines_that_were_not_read(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_state, "birth_of", lambda file: 1_000)
    write(log, OLD)
    source = Reader(tmp_path)
    assert source.step(Limit(2, 100)) == OLD[:2]
    monkeypatch.setattr(file_state, "birth_of", lambda file: 2_000)
    with pytest.raises(FatalError, match=r"bytes 10 to 25 of app\.log are gone"):
        source.step()


@pytest.mark.parametrize(
    ("found", "same"),
    [
        ({"birth": 5}, True),
        ({"birth": 6}, False),
        ({"birth": 5, "modified": 1, "changed": 1}, True),
        ({"birth": 0}, True),
        ({"birth": 0, "modified": 99, "changed": 99}, True),
        ({"birth": 0, "modified": 19}, True),
        ({"birth": 0, "changed": 29}, False),
        ({"birth": 5, "inode": 8}, False),
        ({"birth": 5, "inode": 0}, False),
    ],
)
def test_what_makes_a_file_the_same(found: dict[str, int], same: bool) -> None:
    """Inode and birth time; if one scan has no birth time, that of the inode's change may not have gone back."""
    tracked = TrackedFile("a", 0, 7, modified=20, changed=30, birth=5)
    values = {"inode": 7, "size": 1, "modified": 20, "changed": 30, **found}
    assert tracked.may_be(FoundFile("/elsewhere/b", "b", **values)) is same


def test_a_remote_file_is_known_by_its_name() -> None:
    tracked = TrackedFile("a", 0, 0)
    assert tracked.may_be(FoundFile("memory://x/a", "a", 0, 1, 0))
    assert not tracked.may_be(FoundFile("memory://x/b", "b", 0, 1, 0))


# -- positions ------------------------------------------------------------------------------------------------------

KNOWN_BEFORE = ("name", "number", "inode", "offset", "line", "mark", "unended", "size", "modified")


def as_stored_before(position: dict[str, Any]) -> dict[str, Any]:
    """The position as stored by the version before this one."""
    files = [{key: file[key] for key in KNOWN_BEFORE} for file in position["files"]]
    return {"seen": position["seen"], "files": files}


def test_a_position_of_the_version_before(tmp_path: Path, log: Path) -> None:
    """Reading continues, survives a rename, and adds birth times at its next step."""
    write(log, OLD)
    source = Reader(tmp_path)
    assert source.step(Limit(2, 100)) == OLD[:2]
    source.position = as_stored_before(source.position)
    assert source.step(Limit(1, 100)) == OLD[2:3]
    source.position = as_stored_before(source.position)
    rotate(log)
    assert source.step() == [*OLD[3:], *NEW]
    assert [file["birth"] for file in source.position["files"]] == [
        file_state.birth_of(f"{log}.1"),
        file_state.birth_of(str(log)),
    ]


def test_births_of_files_that_were_read_before(tmp_path: Path) -> None:
    """Also of those in which nothing is read any more."""
    append(tmp_path / "a.txt", "1\n")
    source = Reader(tmp_path, "*.txt")
    source.step()
    source.position = as_stored_before(source.position)
    append(tmp_path / "b.txt", "2\n")
    assert source.step() == ["2"]
    assert source.position["files"][0]["birth"] == file_state.birth_of(str(tmp_path / "a.txt"))


def test_what_a_look_happens_to_see_is_no_part_of_a_place(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a delivery's hash would depend on the machine that planned it."""
    write(log, OLD)
    source = Reader(tmp_path)
    seen = source.source.latest(source.position, Limit(2, 100))
    append(log, "more\n")
    monkeypatch.setattr(file_state, "birth_of", lambda file: 0)
    source.restart()
    later = source.source.latest(source.position, Limit(2, 100))
    assert seen != later
    assert source.source.place(seen) == source.source.place(later)
    assert set(source.source.place(seen)["files"][0]) == {*KNOWN_BEFORE} - {"size", "modified"}


# -- without births -------------------------------------------------------------------------------------------------


def test_without_births(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is followed and renamed as before, also while what writes it sets its time back, as ``cp -p`` does."""
    monkeypatch.setattr(file_state, "birth_of", lambda file: 0)
    write(log, OLD)
    source = Reader(tmp_path)
    assert source.step() == OLD
    append(log, "more\n")
    rotate(log)
    assert source.step() == ["more", *NEW]
    assert [file["birth"] for file in source.position["files"]] == [0, 0]
    append(log, "late\n")
    os.utime(log, ns=(1, 1))
    assert source.step() == ["late"]


def test_without_births_a_folder_of_files_whose_times_are_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come with the times of their originals, which ``cp -p`` and ``rsync`` set once all is written."""
    monkeypatch.setattr(file_state, "birth_of", lambda file: 0)
    inbox = tmp_path / "in"
    inbox.mkdir()
    write(inbox / "1.jsonl", OLD)
    source = Reader(tmp_path, "in/")
    assert source.step(Limit(2, 100)) == OLD[:2]
    append(inbox / "1.jsonl", "more\n")
    os.utime(inbox / "1.jsonl", ns=(1, 1))
    assert source.step() == [*OLD[2:], "more"]
    write(inbox / "1.jsonl", NEW)
    os.utime(inbox / "1.jsonl", ns=(0, 0))
    assert source.step() == NEW


@pytest.mark.parametrize("file", [10**6, "/there/is/no/such/file"])
def test_no_birth_is_no_error(file: int | str) -> None:
    assert file_state.birth_of(file) == 0


def test_a_c_library_without_statx(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, "a\n")
    monkeypatch.setattr(file_state, "_statx", lambda: None)
    assert file_state.birth_of(str(log)) == int(getattr(log.stat(), "st_birthtime", 0) * 1e9)


def test_a_birth_is_the_file_s_under_every_name(tmp_path: Path, log: Path) -> None:
    append(log, "a\n")
    was = file_state.birth_of(str(log))
    log.rename(tmp_path / "b")
    append(tmp_path / "b", "b\n")
    with (tmp_path / "b").open("rb") as file:
        assert file_state.birth_of(file.fileno()) == was == file_state.birth_of(str(tmp_path / "b"))
