"""The file source: files overwritten while they are read. No other bytes are taken for the planned ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lab.descriptors import open_files
from lab.file_changes import NEW, OLD, copy_and_truncate, overwrite, replace, rotate, write
from lab.file_reading import MUCH, Reader, append, text_of

from conduit_dagster.connectors.file import line_reader, step_ranges
from conduit_dagster.connectors.file.file_state import FoundFile
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import Block, Limit, ReadOptions, Split

# -- what a task reads ----------------------------------------------------------------------------------------------


def test_a_rotation_while_a_task_opens_its_file(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was checked is what is read: every line once, the new file's in the next step."""
    write(log, OLD)
    source, read_lines = Reader(tmp_path), line_reader.read_lines

    def rotated(*args: Any) -> Any:
        monkeypatch.undo()
        rotate(log)
        return read_lines(*args)

    monkeypatch.setattr(line_reader, "read_lines", rotated)
    assert source.step() == OLD
    assert source.step() == NEW


@pytest.mark.parametrize("after_first_block", [False, True])
def test_a_rotation_between_plan_and_task(tmp_path: Path, log: Path, after_first_block: bool) -> None:
    """The task finds the file under its new name, and reads it to the end whatever happens to the name."""
    write(log, OLD)
    source = Reader(tmp_path)
    [split] = source.source.split(source.position, source.source.latest(source.position, MUCH), 1)
    blocks = source.source.read(split, ReadOptions(block_records=2))
    found = [next(blocks)] if after_first_block else []
    rotate(log)
    found += list(blocks)
    assert [text_of(r) for b in found if isinstance(b, Block) for r in b.records] == OLD


def planned(tmp_path: Path, log: Path) -> tuple[Reader, Any, Split]:
    """A source that has read one line of a file, and the plan of a step with the others."""
    write(log, ["first", *OLD])
    source = Reader(tmp_path)
    assert source.step(Limit(1, 100)) == ["first"]
    end = source.source.latest(source.position, MUCH)
    [split] = source.source.split(source.position, end, 1)
    return source, end, split


def test_a_task_reads_the_copy_of_a_truncated_file(tmp_path: Path, log: Path) -> None:
    source, end, split = planned(tmp_path, log)
    copy_and_truncate(log)
    [block] = source.source.read(split, ReadOptions())
    assert isinstance(block, Block)
    assert [text_of(record) for record in block.records] == OLD
    source.source.verify(source.position, end)


@pytest.mark.parametrize("change", [replace, overwrite])
def test_a_task_reads_no_other_file(tmp_path: Path, log: Path, change: Callable[[Path], None]) -> None:
    """Not of another inode, and not of the same one if what was read of it is gone."""
    source, end, split = planned(tmp_path, log)
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
    end, block = source.planned()
    rotate(log)
    cut = source.source.within(source.position, end, block.boundary(2))
    for _ in range(2):
        assert [text_of(record) for record in source.records(cut)] == OLD[:3]
        source.restart()
    source.position = cut
    assert source.step() == [*OLD[3:], *NEW]


def test_no_boundary_is_of_what_was_never_read(tmp_path: Path, log: Path) -> None:
    """The file is truncated and rewritten while a task has its lines, behind an unchanged beginning."""
    write(log, ["x" * 300, *OLD])
    source = Reader(tmp_path)
    _, block = source.planned()
    write(log, ["x" * 300, *NEW])
    with pytest.raises(TransientError) as raised:
        block.boundary(2)
    assert raised.value.code == "file.moved"


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    for i in range(40):
        append(tmp_path / f"{i:02d}.txt", "a\nb\n")
    source, before = Reader(tmp_path, "*.txt"), open_files(tmp_path)
    while source.step(Limit(3, 100), drain=True):
        assert source.source.lag(source.position) is not None
    assert open_files(tmp_path) == before


# -- files that are changed in place --------------------------------------------------------------------------------


def test_copied_and_cut_off_after_all_was_read(tmp_path: Path, log: Path) -> None:
    """The copy is not a new file; the file is started over."""
    write(log, OLD)
    source = Reader(tmp_path)
    assert source.step() == OLD
    copy_and_truncate(log)
    assert source.step() == NEW


def test_cut_off_and_written_anew_between_counting_and_marking(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No position combines the lines of one content with the mark of another."""
    write(log, OLD)
    source, reach = Reader(tmp_path), step_ranges.reach

    def changed(*args: Any) -> Any:
        monkeypatch.undo()
        found = reach(*args)
        write(log, ["something", "longer", *NEW])
        return found

    monkeypatch.setattr(step_ranges, "reach", changed)
    assert source.step() == ["something", "longer", *NEW]


def test_lines_that_were_seen_and_not_read_are_written_over(tmp_path: Path, log: Path) -> None:
    """After an unchanged first line, and with more bytes than there were."""
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
    """It was no record yet. If the file gets shorter, bytes that existed are gone."""
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
    """A refused record cuts the step in the middle of the file; then its rest is overwritten."""
    write(log, OLD)
    source = Reader(tmp_path)
    end, block = source.planned()
    source.position = source.source.within(source.position, end, block.boundary(1))
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
    """Past the known names: it is not forgotten, and so not read twice."""
    write(tmp_path / "m.txt", OLD)
    source = Reader(tmp_path, "*.txt")
    assert source.step() == OLD
    write(tmp_path / "n.txt", NEW)
    files = source.source._scan.files

    def renamed() -> list[FoundFile]:
        monkeypatch.undo()
        found = [file for file in files() if file.name != "m.txt"]
        (tmp_path / "m.txt").rename(tmp_path / "a.txt")
        return found

    monkeypatch.setattr(source.source._scan, "files", renamed)
    assert source.step() == NEW
    assert source.step() == []


def test_tracked_files_travel_as_they_are(tmp_path: Path, log: Path) -> None:
    """A boundary returns from the state store unchanged."""
    write(log, OLD)
    source = Reader(tmp_path)
    end = source.source.latest(source.position, Limit(2, 100))
    assert msgspec.json.decode(msgspec.json.encode(end)) == end
    assert end["files"][0]["ahead"] == 25
