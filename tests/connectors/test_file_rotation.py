"""The file source: files that are renamed, replaced, restarted or gone; each byte read once and in order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from lab.file_changes import pack
from lab.file_reading import ENDLESS, MUCH, Reader, append

from conduit_dagster.connectors.file import file_state, step_ranges
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Block, Limit, ReadOptions


def test_rotation_finishes_the_renamed_file_first(tmp_path: Path, log: Path) -> None:
    reader = Reader(tmp_path, **{"rotate-wait": "0s"})
    append(log, "a\nb\n")
    assert reader.step() == ["a", "b"]
    append(log, "c\nunfinished")
    log.rename(tmp_path / "app.log.1")
    append(log, "d\n")
    assert reader.step() == ["c", "unfinished", "d"]
    append(log, "e\n")
    reader.restart()
    assert reader.step() == ["e"]


def test_a_writer_may_finish_its_line_in_the_renamed_file(tmp_path: Path, log: Path) -> None:
    """Until the renamed file has been unchanged for a while, its unfinished line waits, and so does the next file."""
    reader = Reader(tmp_path, **{"rotate-wait": "1h"})
    append(log, "a\nunfin")
    assert reader.step() == ["a"]
    log.rename(tmp_path / "app.log.1")
    append(log, "b\n")
    assert reader.step() == []
    append(tmp_path / "app.log.1", "ished\n")
    assert reader.step() == ["unfinished", "b"]


def test_an_unfinished_line_that_was_looked_at_is_read_after_rotation(tmp_path: Path, log: Path) -> None:
    reader = Reader(tmp_path, **{"rotate-wait": "0s"})
    append(log, "one\n")
    assert reader.step() == ["one"]
    append(log, "two")
    assert reader.step() == []
    log.rename(tmp_path / "app.log.1")
    append(log, "three\n")
    assert reader.step() == ["two", "three"]


def test_the_end_of_a_line_that_was_drained_without_it(tmp_path: Path, log: Path) -> None:
    """It belongs to the previous line and is not a line of its own."""
    reader = Reader(tmp_path, **ENDLESS)
    append(log, "a\nlast")
    assert reader.step(drain=True) == ["a", "last"]
    append(log, "\nnext\n")
    assert reader.step(drain=True, n=3) == ["next"]
    end = reader.source.latest(reader.position, MUCH)
    assert end == reader.position


def test_files_rotated_while_the_pipeline_was_down(tmp_path: Path, log: Path) -> None:
    """Also if the file being read has been deleted in the meantime, after it was read completely."""
    append(log, "mon\n")
    reader = Reader(tmp_path)
    assert reader.step() == ["mon"]
    began = log.stat().st_mtime_ns
    log.unlink()
    for i, (name, text) in enumerate((("app.log.2", "tue"), ("app.log.1", "wed"), ("app.log", "thu"))):
        append(tmp_path / name, f"{text}\n")
        os.utime(tmp_path / name, ns=(1, began + (i + 1) * 1_000_000))
    reader.restart()
    assert reader.step() == ["tue", "wed", "thu"]


def test_another_file_of_the_same_size_is_not_overlooked(tmp_path: Path) -> None:
    """A vain wait for one file says nothing about another."""
    append(tmp_path / "m", "12345")
    reader = Reader(tmp_path, "[a-z]")
    assert reader.step() == []
    append(tmp_path / "a", "abcd\n")
    assert reader.step() == ["abcd"]


@pytest.mark.parametrize("name", ["open_found", "reach"])
def test_a_rotation_while_it_is_looking(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Before it is opened, or afterwards: nothing of the new file is taken for the old one's."""
    append(log, "a\n")
    reader = Reader(tmp_path, **{"rotate-wait": "0s"})
    assert reader.step() == ["a"]
    append(log, "bb\n")
    original = getattr(step_ranges, name)

    def rotating(*args: Any) -> Any:
        if not (tmp_path / "app.log.1").exists():
            log.rename(tmp_path / "app.log.1")
            append(log, "x\ny\nzz\n")
        return original(*args)

    monkeypatch.setattr(step_ranges, name, rotating)
    assert reader.step() + reader.step() == ["bb", "x", "y", "zz"]


def test_a_planned_range_that_is_gone_may_be_given_up(tmp_path: Path, log: Path) -> None:
    """Only with on-gone: skip; otherwise it is named."""
    append(log, "a\nb\n")
    reader, skipping = Reader(tmp_path), Reader(tmp_path, **{"on-gone": "skip"})
    end = reader.source.latest(reader.position, MUCH)
    assert not skipping.source.gives_up(reader.position, end)
    log.unlink()
    with pytest.raises(FatalError, match="is gone or was changed"):
        reader.source.split(reader.position, end, 1)
    assert not reader.source.gives_up(reader.position, end)
    assert skipping.source.gives_up(reader.position, end)


def test_a_split_is_found_again_after_a_rename(tmp_path: Path, log: Path) -> None:
    append(log, "a\nb\n")
    reader = Reader(tmp_path)
    [split] = reader.source.split(reader.position, reader.source.latest(reader.position, MUCH), 1)
    log.rename(tmp_path / "app.log.1")
    [block] = reader.source.read(reader.source.relocate(split), ReadOptions())
    assert isinstance(block, Block)
    assert [record.after for record in block.records] == [b"a", b"b"]


def test_rotation_twice_between_two_looks(tmp_path: Path, log: Path) -> None:
    """A file that came and was rotated away in between is read as well, in its place."""
    append(log, "a\n")
    reader = Reader(tmp_path)
    assert reader.step() == ["a"]
    append(log, "b\n")
    log.rename(tmp_path / "app.log.2")
    append(log, "c\n")
    os.utime(log, ns=(1, (tmp_path / "app.log.2").stat().st_mtime_ns + 1_000_000))
    log.rename(tmp_path / "app.log.1")
    append(log, "d\n")
    assert reader.step() == ["b", "c", "d"]


def test_older_rotated_files_are_not_ours(tmp_path: Path, log: Path) -> None:
    """As in Conduit, a new source reads the path, not what was rotated away before it began."""
    append(tmp_path / "app.log.1", "old\n")
    append(log, "a\n")
    assert Reader(tmp_path).step() == ["a"]


def test_between_rename_and_create_nothing_is_missing(tmp_path: Path, log: Path) -> None:
    append(log, "a\n")
    reader = Reader(tmp_path)
    reader.step()
    append(log, "b\n")
    log.rename(tmp_path / "app.log.1")
    assert reader.step() == ["b"]


def test_positions_stay_unique_after_rotation(tmp_path: Path, log: Path) -> None:
    append(log, "a\n")
    reader = Reader(tmp_path)
    reader.step()
    log.rename(tmp_path / "app.log.1")
    append(log, "b\n")
    end = reader.source.latest(reader.position, MUCH)
    assert [r.position for r in reader.records(end)] == ["1:2"]


@pytest.mark.parametrize("how", ["deleted", "cut off", "replaced"])
def test_a_known_range_that_is_gone_is_named(tmp_path: Path, log: Path, how: str) -> None:
    """Bytes seen and not read: the run stops and names the range; with ``on-gone: skip`` it continues without it."""
    append(log, "a\nb\nc\n")
    reader = Reader(tmp_path)
    assert reader.step(Limit(1, 100)) == ["a"]
    match how:
        case "deleted":
            log.unlink()
        case "cut off":
            log.write_text("")
        case _:
            log.unlink()
            append(log, "other file\n")
    reader.restart()
    with pytest.raises(FatalError, match=r"bytes 2 to 6 of app\.log are gone") as error:
        reader.step()
    assert error.value.code == "file.range_gone"
    skipping = Reader(tmp_path, **{"on-gone": "skip"})
    skipping.position = reader.position
    assert skipping.step() == (["other file"] if how == "replaced" else [])


def test_a_file_begun_anew_after_all_of_it_was_read(tmp_path: Path, log: Path) -> None:
    """For example truncated by copytruncate: nothing that was seen is missing, so it is read from its beginning."""
    append(log, "a\nb\n")
    reader = Reader(tmp_path)
    reader.step()
    log.write_text("")
    assert reader.step() == []
    append(log, "c\n")
    assert reader.step() == ["c"]


def test_another_file_on_the_same_inode_is_not_taken_for_it(tmp_path: Path, log: Path) -> None:
    append(log, "aaaa\n")
    reader = Reader(tmp_path)
    reader.step()
    log.write_text("bbbb\ncccc\n")
    assert reader.step() == ["bbbb", "cccc"]


def test_verify_finds_what_changed_under_a_plan(tmp_path: Path, log: Path) -> None:
    append(log, "a\nb\n")
    reader = Reader(tmp_path)
    end = reader.source.latest(reader.position, MUCH)
    reader.source.verify(reader.position, end)
    log.write_text("x\ny\n")
    with pytest.raises(FatalError, match="is gone or was changed"):
        reader.source.verify(reader.position, end)


# -- files of which nothing is read yet -----------------------------------------------------------------------------


@pytest.mark.parametrize("begin", ["", "a"])
@pytest.mark.parametrize("path", ["app.log", "*.log"])
def test_a_file_that_was_empty_when_the_source_began(tmp_path: Path, log: Path, path: str, begin: str) -> None:
    """Or that had only half a line: it is known, so that it is found again after a rotation."""
    append(log, begin)
    reader = Reader(tmp_path, path, **{"rotate-wait": "0s"})
    assert reader.step() == []
    reader.restart()
    append(log, f"{'a'[len(begin) :]}1\na2\n")
    log.rename(tmp_path / "app.log.1")
    append(log, "b1\n")
    assert reader.step() + reader.step() == ["a1", "a2", "b1"]
    log.rename(tmp_path / "app.log.2")
    log.touch()
    assert reader.step() == []
    append(log, "c1\n")
    log.rename(tmp_path / "app.log.3")
    append(log, "d1\n")
    assert reader.step() == ["c1", "d1"]


def test_an_empty_file_that_was_compressed_with_its_first_lines(tmp_path: Path, log: Path) -> None:
    log.touch()
    reader = Reader(tmp_path)
    assert reader.step() == []
    append(log, "a1\n")
    log.rename(tmp_path / "app.log.1")
    pack(tmp_path / "app.log.1")
    append(log, "b1\n")
    assert reader.step() == ["a1", "b1"]


def test_an_empty_file_is_one_step(tmp_path: Path, log: Path) -> None:
    log.touch()
    reader = Reader(tmp_path)
    reader.step()
    assert reader.source.latest(reader.position, MUCH) == reader.position
    append(log, "half")
    assert reader.source.latest(reader.position, MUCH) == reader.position
    log.unlink()
    append(log, "a1\n")
    assert reader.step() == ["a1"]


def test_another_file_beside_an_empty_one(tmp_path: Path, log: Path) -> None:
    """It is no copy of a file that has not changed since."""
    log.touch()
    reader = Reader(tmp_path)
    assert reader.step() == []
    before = log.stat().st_ctime_ns
    other = tmp_path / "app.log-errors"
    append(other, "error\n")
    while file_state.birth_of(str(other)) == before:  # the resolution of the file system's clock
        other.unlink()
        append(other, "error\n")
    assert reader.step() == []
