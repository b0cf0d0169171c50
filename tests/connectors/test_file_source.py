"""The file source: lines of growing, truncated and many files, each byte read once and in order."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from lab.file_reading import ENDLESS, MUCH, Reader, append
from lab.file_rights import obeyed

from conduit_dagster.connectors.file.open_file import OpenFile
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import Keys, Limit, ReadOptions


def test_follows_a_growing_file(tmp_path: Path, log: Path) -> None:
    """A line without its end waits until it has one."""
    reader = Reader(tmp_path)
    append(log, "a\nb\nhal")
    assert reader.step() == ["a", "b"]
    assert reader.step() == []
    append(log, "f\n\nc\n")
    assert reader.step() == ["half", "", "c"]
    reader.restart()
    assert reader.step() == []


def test_drains_the_last_line_without_its_end(tmp_path: Path, log: Path) -> None:
    """If requested; ``test_file_half_lines.py`` has the rest."""
    append(log, "a\nlast")
    reader = Reader(tmp_path, **ENDLESS)
    assert reader.step(drain=True) == ["a", "last"]
    assert reader.step(drain=True) == []


def test_draining_stops_at_the_horizon(tmp_path: Path, log: Path) -> None:
    """Anything appended after the start of the run belongs to the next run."""
    append(log, "a\n")
    reader = Reader(tmp_path)
    horizon = reader.source.horizon()
    append(log, "b\n")
    end = reader.source.latest(reader.position, MUCH, horizon)
    assert [r.after for r in reader.records(end)] == [b"a"]


def test_positions_and_keys_as_conduit_has_them(tmp_path: Path, log: Path) -> None:
    """Position: the byte offset after the line; key: its number; metadata keeps the path as written."""
    append(log, "a\nbcd\n")
    reader = Reader(tmp_path, "./app.log")
    end = reader.source.latest(reader.position, MUCH)
    records = reader.records(end)
    assert [(r.position, r.key, r.after) for r in records] == [(2, b"1", b"a"), (6, b"2", b"bcd")]
    assert records[0].metadata == {
        "conduit.source.connector.id": "p:in",
        "file.path": "./app.log",
        "opencdc.readAt": "7",
    }


def test_a_batch_of_few_records_reads_no_further_than_it_must(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a backlog is read again for each of its batches."""
    append(log, ("x" * 99 + "\n") * 100_000)
    reader, read, read_at = Reader(tmp_path), list[int](), OpenFile.read_at

    def counting(file: OpenFile, offset: int, size: int) -> bytes:
        read.append(len(data := read_at(file, offset, size)))
        return data

    monkeypatch.setattr(OpenFile, "read_at", counting)
    end = reader.source.latest(reader.position, Limit(1_000, 10**9))
    assert reader.source.lag(end) == 99_000 * 100
    assert sum(read) < 3_000_000


@pytest.mark.parametrize("limit", [Limit(1, 10**9), Limit(7, 10**9), Limit(10**9, 1), Limit(10**9, 1000), Limit(3, 17)])
def test_steps_never_exceed_the_limit_and_lose_nothing(tmp_path: Path, log: Path, limit: Limit) -> None:
    """Except that a line longer than a batch is a batch of its own."""
    lines = [f"line {i} " + "x" * (i % 50) for i in range(300)]
    append(log, "\n".join(lines) + "\n")
    reader, found = Reader(tmp_path), list[str]()
    while step := reader.step(limit):
        assert len(step) <= limit.records
        assert sum(len(line) + 1 for line in step) <= limit.bytes or len(step) == 1
        found += step
    assert found == lines


@pytest.mark.parametrize("n", [1, 2, 3, 16])
def test_splits_cover_the_range_in_order(tmp_path: Path, log: Path, n: int) -> None:
    """Also when cut again by another process, which has not scanned the file."""
    lines = [f"{i} " + "y" * (i % 1000) for i in range(9000)]
    append(log, "\n".join(lines) + "\n")
    reader = Reader(tmp_path)
    end = reader.source.latest(reader.position, MUCH)
    reader.restart()
    records = reader.records(end, n)
    assert [record.after.decode() for record in records] == lines
    assert [int(record.key) for record in records] == list(range(1, 9001))
    assert len(reader.source.split(reader.position, end, n)) == min(n, 5)


def test_boundaries_resume_exactly_after_their_record(tmp_path: Path, log: Path) -> None:
    """The position after any record, given as a start, reads the rest; omitted keys are filled in on demand."""
    append(log, "".join(f"{i}\n" for i in range(50)))
    reader = Reader(tmp_path)
    start, end = reader.position, reader.source.latest(reader.position, MUCH)
    [split] = reader.source.split(start, end, 1)
    for block in reader.source.read(split, ReadOptions(Keys.NONE, block_records=7)):
        for i, record in enumerate(block.records):
            reader.position = reader.source.within(start, end, block.boundary(i))
            following = reader.records(end)
            assert [int(r.after) for r in following] == list(range(int(record.after) + 1, 50))
            assert block.complete is not None
            block.complete(i, record)
            assert (int(record.key), record.position) == (
                int(record.after) + 1,
                reader.position["files"][0]["offset"],
            )


@pytest.mark.parametrize("size", [5, 500, 3_000_000])
def test_a_long_last_line_is_drained_whatever_the_limit(tmp_path: Path, log: Path, size: int) -> None:
    append(log, "a\n" + "x" * size)
    reader, found = Reader(tmp_path, **ENDLESS), list[str]()
    while step := reader.step(Limit(1, 10), drain=True):
        found += step
    assert found == ["a", "x" * size]


def test_a_limit_inside_a_file_does_not_reach_into_the_next(tmp_path: Path) -> None:
    """Otherwise lines of the second file would come before the rest of the first."""
    lines = [f"{name}{i:03d}" for name in "ab" for i in range(50)]
    for name in "ab":
        append(tmp_path / f"{name}.txt", "".join(f"{name}{i:03d}\n" for i in range(50)))
    reader, found = Reader(tmp_path, "*.txt"), list[str]()
    while step := reader.step(Limit(1000, 37)):
        found += step
    assert found == lines


def test_a_file_under_two_names_is_read_once(tmp_path: Path) -> None:
    append(tmp_path / "2024.jsonl", "a\n")
    (tmp_path / "current.jsonl").symlink_to("2024.jsonl")
    (tmp_path / "hard.jsonl").hardlink_to(tmp_path / "2024.jsonl")
    reader = Reader(tmp_path, "*.jsonl")
    assert reader.step() == ["a"]
    assert reader.step() == []


def test_a_root_with_the_characters_of_a_glob(tmp_path: Path) -> None:
    root = tmp_path / "[odd] *root"
    root.mkdir()
    append(root / "app.log", "a\n")
    assert Reader(root).step() == ["a"]
    (root / "in").mkdir()
    append(root / "in" / "b", "b\n")
    assert Reader(root, "in/").step() == ["b"]


def test_paths_in_metadata_are_as_written(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    append(tmp_path / "logs" / "app-1.txt", "a\n")
    for path in ("logs/", "logs/app-*.txt", "*/app-1.txt", "logs/app-?.txt"):
        reader = Reader(tmp_path, path)
        [record] = reader.records(reader.source.latest(reader.position, MUCH))
        assert record.metadata["file.path"] == "logs/app-1.txt"


def test_a_name_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")).touch()
    with pytest.raises(FatalError, match="is not UTF-8"):
        Reader(tmp_path, "*.txt").step()


def test_splits_do_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    """A thousand files per step, and each split carries only its own file."""
    for i in range(1200):
        append(tmp_path / f"{i:04d}.txt", "x\n")
    reader = Reader(tmp_path, "*.txt")
    end = reader.source.latest(reader.position, MUCH)
    splits = reader.source.split(reader.position, end, 4)
    assert len(splits) == 1000
    assert max(len(str(split)) for split in splits) < 1000
    assert len(reader.step()) == 1000
    assert len(reader.step()) == 200
    assert reader.step() == []


def test_a_folder_is_read_by_name(tmp_path: Path) -> None:
    """New files join, hidden and ``_`` files and folders are left out, a deleted file that was read is forgotten."""
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    for name in ("b.jsonl", "a.jsonl", ".hidden", "_SUCCESS"):
        append(folder / name, f"{name} 1\n")
    reader = Reader(tmp_path, "in/")
    assert reader.step(n=4) == ["a.jsonl 1", "b.jsonl 1"]
    append(folder / "0.jsonl", "0 1\n")
    append(folder / "b.jsonl", "b 2\n")
    (folder / "a.jsonl").unlink()
    assert reader.step() == ["b 2", "0 1"]
    assert [file["name"] for file in reader.position["files"]] == ["b.jsonl", "0.jsonl"]


def test_a_glob_takes_what_matches(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.txt", "c.jsonl"):
        append(tmp_path / name, f"{name}\n")
    reader = Reader(tmp_path, "*.jsonl")
    end = reader.source.latest(reader.position, MUCH)
    records = reader.records(end)
    assert [r.after for r in records] == [b"a.jsonl", b"c.jsonl"]
    assert [r.position for r in records] == ["0:a.jsonl:8", "1:c.jsonl:8"]


def test_a_folder_with_nothing_in_it_yet(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    assert Reader(tmp_path, "in/").step() == []


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TransientError, match=r"there is no file app\.log") as error:
        Reader(tmp_path).step()
    assert error.value.code == "file.missing"


def test_no_permission_is_named(log: Path, tmp_path: Path) -> None:
    append(log, "a\n")
    reader = Reader(tmp_path)
    reader.source.check()
    log.chmod(0)
    for tried in (reader.step, reader.source.check):
        with obeyed(), pytest.raises(TransientError, match=r"can't read app\.log: no permission") as error:
            tried()
        assert error.value.code == "file.no_permission"
        assert error.value.fix


def test_a_check_finds_a_missing_file_and_every_unreadable_one(log: Path, tmp_path: Path) -> None:
    reader, folder = Reader(tmp_path), Reader(tmp_path, "in/")
    with pytest.raises(TransientError, match=r"there is no file app\.log") as error:
        reader.source.check()
    assert error.value.code == "file.missing"
    (tmp_path / "in").mkdir()
    folder.source.check()
    for name in ("a", "b"):
        (tmp_path / "in" / name).write_text("1\n")
    folder.source.check()
    (tmp_path / "in" / "b").chmod(0)
    with obeyed(), pytest.raises(TransientError, match="can't read b: no permission"):
        folder.source.check()


@pytest.mark.parametrize("path", ["in/", "in/*.log", "*/app.log"])
def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, path: str) -> None:
    """It isn't an empty one. A glob skips what is no folder, and links that lead nowhere."""
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "a file").write_text("")
    folder, reader = tmp_path / "in", Reader(tmp_path, path)
    for drain in (False, True):
        assert reader.step(drain=drain) == []
    folder.mkdir()
    append(folder / "app.log", "a\n")
    folder.chmod(0)
    for tried in (reader.step, partial(reader.step, drain=True), reader.source.check):
        with obeyed(), pytest.raises(TransientError, match=r"can't list the files of .*: no permission") as error:
            tried()
        assert error.value.code == "file.no_permission"
    folder.chmod(0o700)
    with obeyed():
        assert reader.step() == ["a"]


@pytest.mark.parametrize("path", ["in/", "*/app.log"])
def test_a_file_that_cannot_be_examined_is_named(tmp_path: Path, path: str) -> None:
    """Its folder may be listed, and no more than that; or it is a link in a circle."""
    folder, reader = tmp_path / "in", Reader(tmp_path, path)
    folder.mkdir()
    append(folder / "app.log", "a\n")
    folder.chmod(0o400)
    for tried in (reader.step, partial(reader.step, drain=True), reader.source.check):
        with obeyed(), pytest.raises(TransientError, match=r"no permission") as error:
            tried()
        assert (error.value.code, error.value.place) == ("file.no_permission", str(folder / "app.log"))
    folder.chmod(0o700)
    (folder / "app.log").unlink()
    (folder / "app.log").symlink_to("app.log")
    with pytest.raises(TransientError, match=r"its symbolic links form a circle") as error:
        reader.step()
    assert error.value.place == str(folder / "app.log")


def test_the_files_of_a_folder_that_cannot_be_listed_for_a_while_are_not_gone(tmp_path: Path) -> None:
    reader = Reader(tmp_path, "*/app.log")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        append(tmp_path / name / "app.log", f"{name}\n")
    assert reader.step() == ["a", "b"]
    append(tmp_path / "a" / "app.log", "more\n")
    (tmp_path / "b").chmod(0)
    with obeyed(), pytest.raises(TransientError, match="can't list"):
        reader.step()
    (tmp_path / "b").chmod(0o700)
    assert [reader.step(), reader.step()] == [["more"], []]


def test_lag_is_what_is_left_to_read(tmp_path: Path, log: Path) -> None:
    append(log, "a\nb\n")
    reader = Reader(tmp_path)
    assert reader.source.lag(reader.position) == 4
    reader.step(Limit(1, 100))
    assert reader.source.lag(reader.position) == 2


def test_a_read_that_fails_names_the_file(tmp_path: Path) -> None:
    """The system's error for an open file has no name: of a disk that is damaged, or of a server that is gone."""
    with OpenFile(str(tmp_path)) as opened, pytest.raises(IsADirectoryError) as error:
        opened.read_at(0, 1)
    assert error.value.filename == str(tmp_path)
