"""Rotation where the settings do not look: out of a glob, behind a link, twice between two looks, by a wrong clock."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from lab.file_reading import Reader, append

from conduit_dagster.connectors.file import file_state
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Limit

ONE = Limit(1, 10_000)


@pytest.fixture(params=["births", "no births"])
def births(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every disk tells when a file was born: NFS before 4.2 and many others in user space do not."""
    if request.param == "no births":
        monkeypatch.setattr(file_state, "birth_of", lambda file: 0)


def steps(reader: Reader, count: int = 6, limit: Limit = ONE) -> list[str]:
    return [line for _ in range(count) for line in reader.step(limit)]


@pytest.mark.usefixtures("births")
def test_a_rename_out_of_the_glob_loses_no_line(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    append(log, "a1\n")
    reader = Reader(tmp_path, "*.log")
    found = reader.step()
    append(log, "a2\na3\n")
    log.rename(tmp_path / "x.log.1")
    append(log, "b1\n")
    assert found + steps(reader) == ["a1", "a2", "a3", "b1"]


@pytest.mark.usefixtures("births")
def test_a_backlog_is_read_after_a_rename_out_of_the_glob(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    append(log, "a1\na2\na3\n")
    reader = Reader(tmp_path, "*.log")
    found = reader.step(ONE)
    log.rename(tmp_path / "x.log.1")
    append(log, "b1\n")
    assert found + steps(reader) == ["a1", "a2", "a3", "b1"]


@pytest.mark.usefixtures("births")
@pytest.mark.parametrize("path", ["containers/x.log", "containers/*.log"])
def test_the_target_of_a_link_is_rotated(tmp_path: Path, path: str) -> None:
    """As kubelet does with a container's log."""
    for folder in ("pods", "containers"):
        (tmp_path / folder).mkdir()
    log = tmp_path / "pods" / "0.log"
    append(log, "a1\n")
    (tmp_path / "containers" / "x.log").symlink_to(log)
    reader = Reader(tmp_path, path)
    found = reader.step()
    append(log, "a2\na3\n")
    log.rename(tmp_path / "pods" / "0.log.20260101-000000")
    append(log, "b1\n")
    assert found + steps(reader) == ["a1", "a2", "a3", "b1"]


@pytest.mark.usefixtures("births")
def test_a_link_is_set_to_the_next_file(tmp_path: Path) -> None:
    """As glog and cronolog do."""
    first, second, link = tmp_path / "app-01.log", tmp_path / "app-02.log", tmp_path / "app.log"
    append(first, "a1\n")
    link.symlink_to(first)
    reader = Reader(tmp_path)
    found = reader.step()
    append(first, "a2\n")
    append(second, "b1\n")
    fresh = tmp_path / "fresh"
    fresh.symlink_to(second)
    fresh.replace(link)
    assert found + steps(reader) == ["a1", "a2", "b1"]


@pytest.mark.usefixtures("births")
@pytest.mark.parametrize("limit", [ONE, Limit(9, 10_000)])
def test_a_rename_to_a_name_of_another_kind(tmp_path: Path, limit: Limit) -> None:
    """As log4j and logback do."""
    log = tmp_path / "app.log"
    append(log, "a1\na2\n")
    reader = Reader(tmp_path)
    found = reader.step(limit)
    append(log, "a3\n")
    log.rename(tmp_path / "app-2026-01-01.log")
    append(log, "b1\n")
    assert found + steps(reader) == ["a1", "a2", "a3", "b1"]


def test_without_births_nothing_is_read_from_a_file_that_got_the_inode_of_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells whether it is the same file, and it is not in the glob."""
    monkeypatch.setattr(file_state, "birth_of", lambda file: 0)
    append(tmp_path / "x.log", "")
    reader = Reader(tmp_path, "*.log")
    assert reader.step() == []
    (tmp_path / "x.log").rename(tmp_path / "other")
    append(tmp_path / "other", "secret\n")
    assert steps(reader) == []


def rotated_twice(root: Path) -> Reader:
    """Return a reader that has read a1 of a file that is now ``app.log.2``; b1 is in ``app.log.1``."""
    log = root / "app.log"
    append(log, "a1\n")
    reader = Reader(root)
    assert reader.step() == ["a1"]
    log.rename(root / "app.log.1")
    append(log, "b1\n")
    (root / "app.log.1").rename(root / "app.log.2")
    log.rename(root / "app.log.1")
    append(log, "c1\n")
    return reader


def test_a_late_line_in_the_oldest_file_hides_no_other(tmp_path: Path) -> None:
    reader = rotated_twice(tmp_path)
    append(tmp_path / "app.log.2", "a2\nhalf")
    later = time.time() + 1  # certainly later than the other files' times, whatever their resolution
    os.utime(tmp_path / "app.log.2", (later, later))
    found = steps(reader, 3)
    append(tmp_path / "app.log.2", " line\n")
    assert sorted(found + steps(reader)) == ["a2", "b1", "c1", "half line"]


def test_a_clock_that_went_back_hides_no_file(tmp_path: Path) -> None:
    reader = rotated_twice(tmp_path)
    past = time.time() - 60
    os.utime(tmp_path / "app.log.1", (past, past))
    assert steps(reader) == ["b1", "c1"]


def test_lines_before_one_that_is_too_long_are_read_first(tmp_path: Path) -> None:
    append(tmp_path / "app.log", "ok1\nok2\n" + "x" * 3_000_000 + "\nok3\n")
    reader = Reader(tmp_path, **{"max-line": "1MB"})
    assert reader.step() == ["ok1", "ok2"]
    with pytest.raises(FatalError) as error:
        reader.step()
    assert error.value.code == "file.line_too_long"


@pytest.mark.parametrize("before", [0, 3, 1_048_570, 1_048_576])
def test_a_line_is_measured_wherever_it_lies(tmp_path: Path, before: int) -> None:
    """Also one of less than the MiB that is read at a time, and one that begins in one MiB and ends in the next."""
    fits = ["y" * 9] * (before // 10) + ["z" * 10]
    append(tmp_path / "app.log", "\n".join([*fits, "x" * 11, "ok", ""]))
    reader = Reader(tmp_path, **{"max-line": "10"})
    assert reader.step() == fits
    with pytest.raises(FatalError, match=f"line {len(fits) + 1} of .* is longer than 10 bytes"):
        reader.step()
