"""The file source: which file it is. Another file's bytes are never taken for those of the one that was planned."""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from file_reading import MUCH, Reader, append

from conduit_dagster.connectors.base import Block, Limit, ReadOptions
from conduit_dagster.connectors.file import birth, reader, steps
from conduit_dagster.connectors.file.listing import Found
from conduit_dagster.connectors.file.tracked import Tracked
from conduit_dagster.recovery.errors import FatalError, TransientError

OLD, NEW = [f"old{i}" for i in range(5)], [f"new{i}" for i in range(9)]


def write(path: Path, lines: list[str]) -> None:
    """Into the file that is there, or a new one."""
    path.write_text("".join(f"{line}\n" for line in lines))


def rotate(log: Path) -> None:
    """As logrotate with ``create``."""
    log.rename(f"{log}.1")
    write(log, NEW)


def replace(log: Path) -> None:
    """As an editor or a downloader puts a file into place at once. Of the old one nothing is left."""
    write(log.with_name("new"), NEW)
    log.with_name("new").replace(log)


def copy_and_truncate(log: Path) -> None:
    """As logrotate with ``copytruncate``, and a writer that goes on."""
    shutil.copy(log, f"{log}.1")
    write(log, NEW)


# -- what a task reads ----------------------------------------------------------------------------------------------


def test_a_rotation_while_a_task_opens_its_file(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked at is what is read: every line once, the new file's in the next step."""
    write(log, OLD)
    source, read_lines = Reader(tmp_path), reader.read_lines

    def rotated(*args: Any) -> Any:
        monkeypatch.undo()
        rotate(log)
        return read_lines(*args)

    monkeypatch.setattr(reader, "read_lines", rotated)
    assert source.step() == OLD
    assert source.step() == NEW


@pytest.mark.parametrize("after_first_block", [False, True])
def test_a_rotation_between_plan_and_task(tmp_path: Path, log: Path, after_first_block: bool) -> None:
    """The task finds the file under its new name, and reads it to the end whatever becomes of the name."""
    write(log, OLD)
    source = Reader(tmp_path)
    [split] = source.source.split(source.position, source.source.latest(source.position, MUCH), 1)
    blocks = source.source.read(split, ReadOptions(block_records=2))
    found = [next(blocks)] if after_first_block else []
    rotate(log)
    found += list(blocks)
    assert [r.after.decode() for b in found if isinstance(b, Block) for r in b.records] == OLD


@pytest.mark.parametrize("change", [replace, copy_and_truncate])
def test_a_task_reads_no_other_file(tmp_path: Path, log: Path, change: Callable[[Path], None]) -> None:
    """Not of another inode, and not of the same one where what was read of it is gone."""
    write(log, ["first", *OLD])
    source = Reader(tmp_path)
    assert source.step(Limit(1, 100)) == ["first"]
    end = source.source.latest(source.position, MUCH)
    [split] = source.source.split(source.position, end, 1)
    change(log)
    with pytest.raises(TransientError) as raised:
        list(source.source.read(split, ReadOptions()))
    assert raised.value.code == "file.moved"
    with pytest.raises(FatalError) as gone:
        source.source.verify(source.position, end)
    assert gone.value.code == "file.range_gone"


def test_a_boundary_is_of_the_file_that_was_read(tmp_path: Path, log: Path) -> None:
    """A record is refused after the file was rotated: the step that is cut there can be read."""
    write(log, OLD)
    source = Reader(tmp_path)
    start, end = source.position, source.source.latest(source.position, MUCH)
    [split] = source.source.split(start, end, 1)
    [block] = source.source.read(split, ReadOptions())
    assert isinstance(block, Block)
    rotate(log)
    cut = source.source.within(start, end, block.boundary(2))
    for _ in range(2):
        assert [record.after.decode() for record in source.records(cut)] == OLD[:3]
        source.restart()
    source.position = cut
    assert source.step() == [*OLD[3:], *NEW]


def test_no_boundary_is_of_what_was_never_read(tmp_path: Path, log: Path) -> None:
    """The file is cut off and written anew while a task has its lines, behind a beginning that stays the same."""
    write(log, ["x" * 300, *OLD])
    source = Reader(tmp_path)
    [split] = source.source.split(source.position, source.source.latest(source.position, MUCH), 1)
    [block] = source.source.read(split, ReadOptions())
    assert isinstance(block, Block)
    write(log, ["x" * 300, *NEW])
    with pytest.raises(TransientError) as raised:
        block.boundary(2)
    assert raised.value.code == "file.moved"


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    for i in range(40):
        append(tmp_path / f"{i:02d}.txt", "a\nb\n")
    gc.collect()  # what the errors of other tests still hold
    source, before = Reader(tmp_path, "*.txt"), len(list(Path("/proc/self/fd").iterdir()))
    while source.step(Limit(3, 100), drain=True):
        assert source.source.lag(source.position) is not None
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# -- one file or another --------------------------------------------------------------------------------------------


def test_an_inode_that_is_given_to_the_next_file(tmp_path: Path, log: Path) -> None:
    """It begins and ends as the file before it, which was read and removed: it is read as well."""
    inbox = tmp_path / "in"
    inbox.mkdir()
    write(inbox / "1.jsonl", OLD)
    inode = (inbox / "1.jsonl").stat().st_ino
    source = Reader(tmp_path, "in/")
    assert source.step() == OLD
    time.sleep(0.02)  # a file's birth is told in ticks of the kernel's clock
    (inbox / "1.jsonl").unlink()
    for attempt in range(300):
        write(inbox / "2.jsonl", OLD)
        if (inbox / "2.jsonl").stat().st_ino == inode:
            break
        (inbox / "2.jsonl").rename(inbox / f".{attempt}")
    if not (inbox / "2.jsonl").exists() or not birth.birth_of(str(inbox / "2.jsonl")):
        pytest.skip("this file system does not give the inode again, or tells no births")
    assert source.step() == OLD


def test_the_same_inode_with_another_birth(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, on any file system: the content is the same to the byte."""
    monkeypatch.setattr(birth, "birth_of", lambda file: 1_000)
    write(log, OLD)
    source = Reader(tmp_path)
    assert source.step() == OLD
    assert source.step() == []
    monkeypatch.setattr(birth, "birth_of", lambda file: 2_000)
    assert source.step() == OLD


def test_the_same_inode_with_another_birth_and_lines_that_were_not_read(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(birth, "birth_of", lambda file: 1_000)
    write(log, OLD)
    source = Reader(tmp_path)
    assert source.step(Limit(2, 100)) == OLD[:2]
    monkeypatch.setattr(birth, "birth_of", lambda file: 2_000)
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
        ({"birth": 0, "modified": 19}, False),
        ({"birth": 0, "changed": 29}, False),
        ({"birth": 5, "inode": 8}, False),
        ({"birth": 5, "inode": 0}, False),
    ],
)
def test_what_makes_a_file_the_same(found: dict[str, int], same: bool) -> None:
    """Inode and birth; where one look has no birth, no time may have gone back."""
    tracked = Tracked("a", 0, 7, modified=20, changed=30, birth=5)
    values = {"inode": 7, "size": 1, "modified": 20, "changed": 30, **found}
    assert tracked.may_be(Found("/elsewhere/b", "b", **values)) is same


def test_a_remote_file_is_known_by_its_name() -> None:
    tracked = Tracked("a", 0, 0)
    assert tracked.may_be(Found("memory://x/a", "a", 0, 1, 0))
    assert not tracked.may_be(Found("memory://x/b", "b", 0, 1, 0))


# -- positions ------------------------------------------------------------------------------------------------------

KNOWN_BEFORE = ("name", "number", "inode", "offset", "line", "mark", "unended", "size", "modified")


def as_stored_before(position: dict[str, Any]) -> dict[str, Any]:
    """The position as the version before this one stored it."""
    files = [{key: file[key] for key in KNOWN_BEFORE} for file in position["files"]]
    return {"seen": position["seen"], "files": files}


def test_a_position_of_the_version_before(tmp_path: Path, log: Path) -> None:
    """It is read on, survives a rename, and learns births at its next step."""
    write(log, OLD)
    source = Reader(tmp_path)
    assert source.step(Limit(2, 100)) == OLD[:2]
    source.position = as_stored_before(source.position)
    assert source.step(Limit(1, 100)) == OLD[2:3]
    source.position = as_stored_before(source.position)
    rotate(log)
    assert source.step() == [*OLD[3:], *NEW]
    assert [file["birth"] for file in source.position["files"]] == [
        birth.birth_of(f"{log}.1"),
        birth.birth_of(str(log)),
    ]


def test_births_of_files_that_were_read_before(tmp_path: Path) -> None:
    """Also of those in which nothing is read any more."""
    append(tmp_path / "a.txt", "1\n")
    source = Reader(tmp_path, "*.txt")
    source.step()
    source.position = as_stored_before(source.position)
    append(tmp_path / "b.txt", "2\n")
    assert source.step() == ["2"]
    assert source.position["files"][0]["birth"] == birth.birth_of(str(tmp_path / "a.txt"))


def test_what_a_look_happens_to_see_is_no_part_of_a_place(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a delivery's hash would depend on which machine planned it."""
    write(log, OLD)
    source = Reader(tmp_path)
    seen = source.source.latest(source.position, Limit(2, 100))
    append(log, "more\n")
    monkeypatch.setattr(birth, "birth_of", lambda file: 0)
    source.restart()
    later = source.source.latest(source.position, Limit(2, 100))
    assert seen != later
    assert source.source.place(seen) == source.source.place(later)
    assert set(source.source.place(seen)["files"][0]) == {*KNOWN_BEFORE} - {"size", "modified"}


# -- without births -------------------------------------------------------------------------------------------------


def test_without_births(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is followed and renamed as ever; one on its inode that is older than it was is another one."""
    monkeypatch.setattr(birth, "birth_of", lambda file: 0)
    write(log, OLD)
    source = Reader(tmp_path)
    assert source.step() == OLD
    append(log, "more\n")
    rotate(log)
    assert source.step() == ["more", *NEW]
    assert [file["birth"] for file in source.position["files"]] == [0, 0]
    os.utime(log, ns=(1, 1))
    assert source.step() == NEW


@pytest.mark.parametrize("file", [10**6, "/there/is/no/such/file"])
def test_no_birth_is_no_error(file: int | str) -> None:
    assert birth.birth_of(file) == 0


def test_a_c_library_without_statx(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, "a\n")
    monkeypatch.setattr(birth, "_statx", lambda: None)
    assert birth.birth_of(str(log)) == int(getattr(log.stat(), "st_birthtime", 0) * 1e9)


def test_a_birth_is_the_file_s_under_every_name(tmp_path: Path, log: Path) -> None:
    append(log, "a\n")
    was = birth.birth_of(str(log))
    log.rename(tmp_path / "b")
    append(tmp_path / "b", "b\n")
    with (tmp_path / "b").open("rb") as file:
        assert birth.birth_of(file.fileno()) == was == birth.birth_of(str(tmp_path / "b"))


# -- files that are changed in place --------------------------------------------------------------------------------


def test_copied_and_cut_off_after_all_was_read(tmp_path: Path, log: Path) -> None:
    """The copy is no new file, the file is begun anew."""
    write(log, OLD)
    source = Reader(tmp_path)
    assert source.step() == OLD
    copy_and_truncate(log)
    assert source.step() == NEW


def test_cut_off_and_written_anew_between_counting_and_marking(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No position is made of the one content's lines and the other one's mark."""
    write(log, OLD)
    source, reach = Reader(tmp_path), steps.reach

    def changed(*args: Any) -> Any:
        monkeypatch.undo()
        found = reach(*args)
        write(log, ["something", "longer", *NEW])
        return found

    monkeypatch.setattr(steps, "reach", changed)
    assert source.step() == ["something", "longer", *NEW]


def test_lines_that_were_seen_and_not_read_are_written_over(tmp_path: Path, log: Path) -> None:
    """Behind a first line that stays the same, and with more bytes than there were."""
    write(log, ["header", *OLD])
    source = Reader(tmp_path)
    assert source.step(Limit(1, 100)) == ["header"]
    write(log, ["header", *NEW])
    source.restart()
    with pytest.raises(FatalError, match=r"bytes 7 to 32 of app\.log are gone"):
        source.step()


@pytest.mark.parametrize("lines", [["header", *OLD[:2]], ["header"]])
def test_a_file_that_is_shorter_than_it_was(tmp_path: Path, log: Path, lines: list[str]) -> None:
    """What was read is there, what was seen behind it is not: named, or lost where that is asked for, and never read
    from the beginning."""
    write(log, ["header", *OLD])
    source = Reader(tmp_path)
    assert source.step(Limit(1, 100)) == ["header"]
    os.truncate(log, sum(len(line) + 1 for line in lines))
    with pytest.raises(FatalError, match=rf"bytes {log.stat().st_size} to 32 of app\.log are gone") as raised:
        source.step()
    assert raised.value.code == "file.range_gone"
    skipping = Reader(tmp_path, **{"on-gone": "skip"})
    skipping.position = source.position
    assert skipping.step() == lines[1:]
    append(log, "more\n")
    assert skipping.step() == ["more"]


@pytest.mark.parametrize(("rewritten", "is_lost"), [("a\nhalves\n", False), ("a\nhuh!\n", False), ("a\nh\n", True)])
def test_an_editor_writes_over_a_half_line(tmp_path: Path, log: Path, rewritten: str, is_lost: bool) -> None:
    """It was no record yet. Where the file gets shorter, bytes that were there are not there any more."""
    append(log, "a\nhalf")
    source = Reader(tmp_path)
    assert source.step() == ["a"]
    log.write_text(rewritten)
    if is_lost:
        with pytest.raises(FatalError, match="bytes 4 to 6 "):
            source.step()
    else:
        assert source.step() == [rewritten[2:].rstrip()]


def test_a_cut_step_knows_what_lies_behind_it(tmp_path: Path, log: Path) -> None:
    """A refused record cuts the step in the middle of the file; then its rest is written over."""
    write(log, OLD)
    source = Reader(tmp_path)
    start, end = source.position, source.source.latest(source.position, MUCH)
    [split] = source.source.split(start, end, 1)
    [block] = source.source.read(split, ReadOptions())
    assert isinstance(block, Block)
    source.position = source.source.within(start, end, block.boundary(1))
    write(log, [*OLD[:2], *NEW])
    with pytest.raises(FatalError, match="are gone"):
        source.step()


# -- folders --------------------------------------------------------------------------------------------------------


def test_a_file_of_a_folder_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", OLD)
    write(tmp_path / "b.txt", ["b"])
    source = Reader(tmp_path, "*.txt")
    assert source.step() == [*OLD, "b"]
    replace(tmp_path / "a.txt")
    assert source.step() == NEW


def test_a_file_that_is_renamed_while_the_folder_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the names that were seen: it is not forgotten, and so not read twice."""
    write(tmp_path / "m.txt", OLD)
    source = Reader(tmp_path, "*.txt")
    assert source.step() == OLD
    write(tmp_path / "n.txt", NEW)
    files = source.source._surveyor.files

    def renamed() -> list[Found]:
        monkeypatch.undo()
        found = [file for file in files() if file.name != "m.txt"]
        (tmp_path / "m.txt").rename(tmp_path / "a.txt")
        return found

    monkeypatch.setattr(source.source._surveyor, "files", renamed)
    assert source.step() == NEW
    assert source.step() == []


def test_tracked_files_travel_as_they_are(tmp_path: Path, log: Path) -> None:
    """A boundary comes back from the state store as it went in."""
    write(log, OLD)
    source = Reader(tmp_path)
    end = source.source.latest(source.position, Limit(2, 100))
    assert msgspec.json.decode(msgspec.json.encode(end)) == end
    assert end["files"][0]["ahead"] == 25
