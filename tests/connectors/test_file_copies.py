"""The file source: copies of files that are gone, and compressed files."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
from pathlib import Path

import pytest
from lab.file_changes import PACKERS, pack
from lab.file_reading import Reader, append

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Limit, ReadOptions

ONE = Limit(1, 10_000)


def rotate_packed(log: Path, name: str = "app.log.1", suffix: str = ".gz") -> Path:
    """Rotate like logrotate with ``compress``."""
    log.rename(log.with_name(name))
    return pack(log.with_name(name), suffix)


def lines(reader: Reader, limit: Limit = ONE, drain: bool = False) -> list[str]:
    found = list[str]()
    while some := reader.step(limit, drain=drain):
        found += some
    return found


@pytest.fixture
def reader(tmp_path: Path, log: Path) -> Reader:
    """It has read a1 of app.log; a2 and a3 were written since, while no pipeline ran."""
    append(log, "a1\n")
    reader = Reader(tmp_path, **{"rotate-wait": "0s"})
    assert reader.step() == ["a1"]
    append(log, "a2\na3\n")
    reader.restart()
    return reader


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("suffix", PACKERS)
def test_the_rest_of_a_rotated_and_compressed_file(reader: Reader, log: Path, suffix: str, drain: bool) -> None:
    rotate_packed(log, "app.log-20261125", suffix)
    append(log, "b1\n")
    assert lines(reader, drain=drain) == ["a2", "a3", "b1"]
    reader.restart()
    assert lines(reader, drain=drain) == []


def test_files_rotated_and_compressed_unseen(reader: Reader, log: Path) -> None:
    rotate_packed(log, "app.log.2")
    append(log, "b1\nb2\n")
    rotate_packed(log, "app.log.1")
    append(log, "c1\n")
    assert lines(reader) == ["a2", "a3", "b1", "b2", "c1"]


def test_older_compressed_files_are_not_ours(reader: Reader, tmp_path: Path, log: Path) -> None:
    append(tmp_path / "app.log.9", "old\n")
    os.utime(tmp_path / "app.log.9", (1, 1))
    pack(tmp_path / "app.log.9")
    rotate_packed(log)
    append(log, "b1\n")
    assert lines(reader) == ["a2", "a3", "b1"]


def test_a_compressed_file_that_was_read_to_its_end(reader: Reader, log: Path) -> None:
    """It is neither an error nor read again, also after it was deleted."""
    assert lines(reader) == ["a2", "a3"]
    packed = rotate_packed(log)
    assert lines(reader) == []
    append(log, "b1\n")
    assert lines(reader) == ["b1"]
    packed.unlink()
    append(log, "b2\n")
    assert lines(reader) == ["b2"]


def test_lines_that_were_seen_and_are_compressed(tmp_path: Path, log: Path) -> None:
    append(log, "a1\na2\na3\n")
    reader = Reader(tmp_path)
    assert reader.step(ONE) == ["a1"]
    rotate_packed(log)
    assert lines(reader) == ["a2", "a3"]


def test_compressed_while_it_is_read(reader: Reader, log: Path) -> None:
    """A compressed file is renamed, and decompressed, between two steps."""
    packed = rotate_packed(log)
    append(log, "b1\n")
    assert reader.step(ONE) == ["a2"]
    later = packed.rename(log.with_name("app.log.2.gz"))
    assert reader.step(ONE) == ["a3"]
    log.with_name("app.log.2").write_bytes(gzip.decompress(later.read_bytes()))
    shutil.copystat(later, log.with_name("app.log.2"))
    later.unlink()
    assert lines(reader) == ["b1"]


@pytest.mark.parametrize("packed", [False, True])
def test_a_planned_range_is_read_from_a_copy(tmp_path: Path, log: Path, packed: bool) -> None:
    """A step that was planned before the file was compressed has the same records and boundaries after it."""
    append(log, "a1\na2\na3\n")
    reader = Reader(tmp_path)
    end = reader.source.latest(reader.position, Limit(3, 100))
    expected = [(record.after, record.position, record.key) for record in reader.records(end)]
    rotate_packed(log) if packed else (shutil.copy(log, f"{log}.1"), log.unlink())
    append(log, "b1\n")
    reader.restart()
    reader.source.verify(reader.position, end)
    assert [(record.after, record.position, record.key) for record in reader.records(end, 3)] == expected
    [split] = reader.source.split(reader.position, end, 1)
    [block] = reader.source.read(split, ReadOptions())
    cut = reader.source.within(reader.position, end, block.boundary(0))  # type: ignore[union-attr]
    reader.position = cut
    assert lines(reader) == ["a2", "a3", "b1"]


def test_the_rest_is_in_the_copy_of_a_truncated_file(reader: Reader, log: Path) -> None:
    """Rotated like logrotate with ``copytruncate``, twice."""
    shutil.copy(log, f"{log}.2")
    log.write_text("b1\n")
    shutil.copy(log, f"{log}.1")
    log.write_text("c1\n")
    assert lines(reader) == ["a2", "a3", "b1", "c1"]


def test_the_copy_of_a_truncated_file_is_compressed(reader: Reader, log: Path) -> None:
    shutil.copy(log, f"{log}.1")
    log.write_text("")
    pack(log.with_name("app.log.1"))
    assert lines(reader) == ["a2", "a3"]
    append(log, "b1\n")
    assert lines(reader) == ["b1"]


def test_a_copy_that_is_made_while_a_run_drains_is_left_to_the_next_one(reader: Reader, log: Path) -> None:
    """The file itself was not reached yet: if it counted as known now, the copy would be none of its lines."""
    log.rename(f"{log}.2")
    log.write_text("b1\n")
    horizon = reader.source.horizon()
    reader.position = reader.source.latest(reader.position, ONE, horizon)
    shutil.copy(log, f"{log}.1")
    log.write_text("")
    found = list[str]()
    while (end := reader.source.latest(reader.position, ONE, horizon)) != reader.position:
        found += [record.after.decode() for record in reader.records(end)]
        reader.position = end
    assert found == ["a3"]
    reader.restart()
    append(log, "c1\n")
    assert lines(reader, drain=True) == ["b1", "c1"]


@pytest.mark.parametrize("path", ["app.log", "./"])
def test_a_copy_that_is_put_back(tmp_path: Path, log: Path, path: str) -> None:
    """As the error says: from a backup, so that it is another file with the same content."""
    append(log, "a1\na2\na3\n")
    reader = Reader(tmp_path, path)
    assert reader.step(ONE) == ["a1"]
    backup = log.read_bytes()
    log.unlink()
    with pytest.raises(FatalError, match=r"copy of it there, named app\.log\.1 \(as app\.log it would"):
        reader.step()
    log.with_name("app.log.1").write_bytes(backup)
    assert lines(reader) == ["a2", "a3"]


@pytest.mark.parametrize("path", ["app.log", "./"])
def test_a_file_that_is_delivered_again(tmp_path: Path, log: Path, path: str) -> None:
    """A file that was read completely and replaced by one with the same beginning is read from its beginning."""
    append(log, "a1\n")
    reader = Reader(tmp_path, path)
    assert lines(reader) == ["a1"]
    (tmp_path / "_new").write_text("a1\na2\n")
    (tmp_path / "_new").replace(log)
    assert lines(reader) == ["a1", "a2"]


def test_another_compressed_file_is_not_taken_for_it(reader: Reader, tmp_path: Path, log: Path) -> None:
    append(tmp_path / "app.log-backup", "a0\na2\n")
    os.utime(tmp_path / "app.log-backup", (1, 1))
    pack(tmp_path / "app.log-backup")
    assert lines(reader) == ["a2", "a3"]


@pytest.mark.parametrize("path", ["*.log", "./"])
@pytest.mark.parametrize("drain", [False, True])
def test_a_file_of_a_folder_continues_in_its_copy(tmp_path: Path, log: Path, path: str, drain: bool) -> None:
    append(log, "a1\n")
    reader = Reader(tmp_path, path)
    assert reader.step() == ["a1"]
    append(log, "a2\n")
    reader.restart()
    shutil.copy(log, f"{log}.1")
    log.write_text("b1\n")
    assert lines(reader, drain=drain) == ["a2", "b1"]


@pytest.mark.parametrize("drain", [False, True])
def test_a_file_of_a_glob_is_compressed(tmp_path: Path, log: Path, drain: bool) -> None:
    append(log, "a1\n")
    reader = Reader(tmp_path, "*.log")
    assert reader.step() == ["a1"]
    append(log, "a2\n")
    reader.restart()
    rotate_packed(log)
    append(log, "b1\n")
    assert lines(reader, drain=drain) == ["a2", "b1"]
    append(log, "b2\n")
    assert lines(reader, drain=drain) == ["b2"]


@pytest.mark.parametrize(("suffix", "damaged"), [(".zst", False), (".gz", True)])
def test_a_rest_that_cannot_be_decompressed_is_named(reader: Reader, log: Path, suffix: str, damaged: bool) -> None:
    """What is left of the file is not known: no line is lost silently."""
    packed = rotate_packed(log, suffix=suffix)
    if damaged:
        times = packed.stat()
        packed.write_bytes(packed.read_bytes()[:-9])
        os.utime(packed, ns=(times.st_atime_ns, times.st_mtime_ns))
    append(log, "b1\n")
    with pytest.raises(FatalError, match=rf"app\.log, read up to byte 3, .*app\.log\.1\{suffix}") as error:
        reader.step()
    assert error.value.code == "file.compressed"
    assert "decompress" in (error.value.fix or "") and "on-gone: skip" in (error.value.fix or "")
    skipping = Reader(log.parent, **{"on-gone": "skip"})
    skipping.position = reader.position
    assert lines(skipping) == ["b1"]
    log.with_name("app.log.1").write_text("a1\na2\na3\n")
    packed.unlink()
    assert lines(reader) == ["a2", "a3", "b1"]


def test_a_file_that_was_read_and_is_compressed_in_another_format(reader: Reader, log: Path) -> None:
    """It has not changed since it was read: nothing is missing."""
    assert lines(reader) == ["a2", "a3"]
    rotate_packed(log, suffix=".zst")
    append(log, "b1\n")
    assert lines(reader) == ["b1"]


def test_a_copy_that_cannot_be_read_says_nothing_of_other_files(tmp_path: Path) -> None:
    for name in "xy":
        append(tmp_path / f"{name}.log", f"{name}1\n")
    reader = Reader(tmp_path, "*.log")
    assert lines(reader) == ["x1", "y1"]
    (tmp_path / "x.log").unlink()
    append(tmp_path / "y.log", "y2\n")
    rotate_packed(tmp_path / "y.log", "y.log.1", ".zst")
    with pytest.raises(FatalError, match=r"^y\.log, read up to byte 3, is gone"):
        reader.step()


# -- compressed files that the path names ---------------------------------------------------------------------------

COMPRESSED = {
    "gz": gzip.compress(b"a\n"),
    "bz2": bz2.compress(b"a\n"),
    "xz": lzma.compress(b"a\n"),
    "zst": b"\x28\xb5\x2f\xfd\x04\x08\x11\x00\x00a\n",
    "zip": b"PK\x03\x04\x14\x00\n",
    "lz4": b"\x04\x22\x4d\x18\x64\n",
}


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("path", ["app*", "./", "app.{}"])
@pytest.mark.parametrize("drain", [False, True])
def test_compressed_bytes_are_no_lines(tmp_path: Path, path: str, name: str, drain: bool) -> None:
    """Whatever the name of the file; what comes before it is read first."""
    (tmp_path / f"app.{name}").write_bytes(COMPRESSED[name])
    (tmp_path / "app").write_bytes(b"a\n")
    reader = Reader(tmp_path, path.format(name), **{"unterminated-wait": "0s", "rotate-wait": "0s"})
    if "{" not in path:
        assert reader.step(drain=drain) == ["a"]
    with pytest.raises(FatalError, match=rf"app\.{name} is compressed") as error:
        reader.step(drain=drain)
    assert error.value.code == "file.compressed"
    assert "exclude" in (error.value.fix or "")


@pytest.mark.parametrize("path", ["app.gz", "./"])
def test_a_text_with_the_suffix_of_a_compressed_file(tmp_path: Path, path: str) -> None:
    append(tmp_path / "app.gz", "a1\n")
    reader = Reader(tmp_path, path)
    assert reader.step() == ["a1"]
    append(tmp_path / "app.gz", "a2\n")
    (tmp_path / "app.gz").rename(tmp_path / "app.gz.1.gz")
    reader.restart()
    assert lines(reader) == ["a2"]


def test_a_text_that_begins_like_a_compressed_file(tmp_path: Path, log: Path) -> None:
    append(log, "BZh9 is no header\n")
    assert Reader(tmp_path).step() == ["BZh9 is no header"]


@pytest.mark.parametrize("path", ["./", "app*", "?pp*"])
def test_names_that_are_left_out(tmp_path: Path, log: Path, path: str) -> None:
    """The rest of a compressed file is read nonetheless."""
    append(log, "a1\n")
    append(tmp_path / "app.tmp", "no\n")
    reader = Reader(tmp_path, path, exclude="*.gz, *.tmp")
    assert lines(reader) == ["a1"]
    append(log, "a2\n")
    rotate_packed(log)
    append(log, "b1\n")
    assert lines(reader) == ["a2", "b1"]
    append(log, "b2\n")
    reader.restart()
    assert lines(reader, drain=True) == ["b2"]
