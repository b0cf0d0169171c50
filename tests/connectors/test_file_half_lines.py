"""The file source: a last line without its end is no record until it is ended, or its file is complete."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from lab.elsewhere import Elsewhere
from lab.file_clock import FileClock
from lab.file_reading import MUCH, Reader, append
from structlog.testing import capture_logs

from conduit_dagster.connectors.file import step_ranges
from conduit_dagster.connectors.file.file_state import FoundFile
from conduit_dagster.connectors.file.open_file import OpenFile

AT_ONCE = {"unterminated-wait": "0s", "rotate-wait": "0s"}
LONG = {"unterminated-wait": "1h", "rotate-wait": "1h"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FileClock:
    """The source's; others write while it waits."""
    return FileClock(monkeypatch)


# -- the last file --------------------------------------------------------------------------------------------------


def test_a_half_line_is_left_for_a_later_run(tmp_path: Path, log: Path) -> None:
    """With one warning that names file and bytes. Once it is ended it is one record."""
    reader = Reader(tmp_path, **AT_ONCE)
    append(log, "a\nhal")
    with capture_logs() as logs:
        assert reader.step(drain=True) == ["a"]
        assert reader.step(drain=True) == []
    [warning] = logs
    assert (warning["log_level"], warning["file"], warning["bytes"]) == ("warning", str(log), "2 to 5")
    append(log, "f\nb\n")
    assert reader.step(drain=True) == ["half", "b"]


def test_a_line_whose_end_comes_while_it_is_waited_for(tmp_path: Path, log: Path, clock: FileClock) -> None:
    """Counted from the last change: each piece restarts the wait."""
    reader = Reader(tmp_path, **{"unterminated-wait": "400ms"})
    clock.append(log, "a\nha")
    clock.append_later(log, "lf", " a ", "li", "ne\n")
    horizon = reader.source.horizon()
    assert clock.seconds == pytest.approx(0.6, abs=0.06)
    assert set(clock.naps) == {0.05}
    end = reader.source.latest(reader.position, MUCH, horizon)
    assert [r.after for r in reader.records(end)] == [b"a", b"half a line"]


def test_a_line_that_stays_half_holds_a_run_up_only_so_long(tmp_path: Path, log: Path, clock: FileClock) -> None:
    clock.append(log, "a\nhalf")
    assert Reader(tmp_path, **{"unterminated-wait": "300ms"}).step(drain=True) == ["a"]
    assert clock.seconds == pytest.approx(0.3, abs=0.06)


def test_the_wait_is_one_of_real_seconds(tmp_path: Path, log: Path) -> None:
    append(log, "a\nhalf")
    began = time.monotonic()
    assert Reader(tmp_path, **{"unterminated-wait": "300ms"}).step(drain=True) == ["a"]
    assert time.monotonic() - began > 0.2


def test_a_writer_that_never_pauses_and_never_ends_its_line(tmp_path: Path, log: Path, clock: FileClock) -> None:
    """It is waited for ten times the wait."""
    clock.append(log, "a\n.")
    clock.at_each_nap = lambda: clock.append(log, ".")
    assert Reader(tmp_path, **{"unterminated-wait": "100ms"}).step(drain=True) == ["a"]
    assert clock.seconds == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize("text", ["", "a\n", "a\nb\n\n"])
def test_there_is_no_wait_where_every_line_has_its_end(tmp_path: Path, log: Path, clock: FileClock, text: str) -> None:
    clock.append(log, text)
    Reader(tmp_path, **LONG).step(drain=True)
    assert clock.naps == []


def test_there_is_no_wait_for_a_file_that_was_quiet_for_so_long(tmp_path: Path, log: Path, clock: FileClock) -> None:
    append(log, "a\nhalf")
    clock.age(log, 4000)
    assert Reader(tmp_path, **LONG).step(drain=True) == ["a"]
    assert clock.naps == []


def test_a_file_whose_time_lies_in_the_future_does_not_hold_a_run_up(
    tmp_path: Path, log: Path, clock: FileClock
) -> None:
    append(log, "a\nhalf")
    clock.age(log, -86_400)
    assert Reader(tmp_path, **{"unterminated-wait": "200ms"}).step(drain=True) == ["a"]
    assert clock.seconds == pytest.approx(0.2, abs=0.06)


def test_only_the_lines_that_were_there_and_their_ends_are_waited_for(
    tmp_path: Path, log: Path, clock: FileClock
) -> None:
    """A writer that always has another line begun does not hold up the run."""
    reader = Reader(tmp_path, **LONG)
    clock.append(log, "a\nha")
    clock.append_later(log, "lf\nb\nnext")
    horizon = reader.source.horizon()
    append(log, " line\n")
    end = reader.source.latest(reader.position, MUCH, horizon)
    assert [r.after for r in reader.records(end)] == [b"a", b"half", b"b"]
    reader.position = end
    assert reader.step(drain=True) == ["next line"]


def test_a_file_that_is_renamed_while_its_line_is_waited_for(tmp_path: Path, log: Path, clock: FileClock) -> None:
    """It is the same file under another name, and its line is waited for there."""
    reader = Reader(tmp_path, **{**LONG, "rotate-wait": "2s"})
    clock.append(log, "a\n")
    assert reader.step() == ["a"]
    clock.append(log, "ha")

    def rotate() -> None:
        log.rename(tmp_path / "app.log.1")
        clock.append(log, "b\n")

    clock.later(0.15, rotate)
    clock.later(0.3, lambda: clock.append(tmp_path / "app.log.1", "lf\n"))
    assert reader.step(drain=True) == ["half"]
    assert reader.step(drain=True) == ["b"]


def test_a_file_that_goes_away_while_its_line_is_waited_for(tmp_path: Path, log: Path, clock: FileClock) -> None:
    clock.append(log, "a\nhalf")
    clock.later(0.15, log.unlink)
    Reader(tmp_path, **LONG).source.horizon()
    assert clock.seconds == pytest.approx(0.15, abs=0.06)


# -- read-unterminated ----------------------------------------------------------------------------------------------


def test_a_half_line_is_a_record_where_that_is_asked_for(tmp_path: Path, log: Path, clock: FileClock) -> None:
    """After one wait; a pipeline that keeps running waits as before. There is no warning."""
    reader = Reader(tmp_path, **{"unterminated-wait": "300ms", "read-unterminated": "true"})
    clock.append(log, "a\nha")
    assert reader.step() == ["a"]
    clock.append_later(log, "lf")
    with capture_logs() as logs:
        assert reader.step(drain=True) == ["half"]
    assert reader.step(drain=True) == []
    assert logs == []


# -- files that another one follows ---------------------------------------------------------------------------------


def test_a_renamed_file_s_last_line(tmp_path: Path, log: Path, clock: FileClock) -> None:
    """It is complete once its file was unchanged for a while, and comes before the next file's lines."""
    reader = Reader(tmp_path, **{"rotate-wait": "300ms", "unterminated-wait": "1h"})
    clock.append(log, "a\n")
    assert reader.step(drain=True) == ["a"]
    clock.append(log, "last")
    log.rename(tmp_path / "app.log.1")
    clock.append(log, "b\n")
    assert reader.step(drain=True) == ["last", "b"]
    assert clock.seconds == pytest.approx(0.3, abs=0.06)


def test_the_next_file_waits_for_a_renamed_one_that_is_still_written_to(
    tmp_path: Path, log: Path, clock: FileClock
) -> None:
    """Otherwise a line would come before one that was begun earlier."""
    reader = Reader(tmp_path, **{"rotate-wait": "100ms"})
    clock.append(log, "a\n")
    assert reader.step(drain=True) == ["a"]
    clock.append(log, "l")
    log.rename(tmp_path / "app.log.1")
    clock.append(log, "b\n")
    clock.at_each_nap = lambda: clock.append(tmp_path / "app.log.1", ".")
    assert reader.step(drain=True) == []
    dots = "." * len(clock.naps)
    assert clock.seconds == pytest.approx(1.0, abs=0.06)
    clock.at_each_nap = lambda: None
    clock.append(tmp_path / "app.log.1", "\n")
    assert reader.step(drain=True) == ["l" + dots, "b"]


def test_a_file_of_a_folder_is_not_done_because_there_is_a_later_name(tmp_path: Path) -> None:
    """Its half line waits; whole lines of the others do not wait for it."""
    reader = Reader(tmp_path, "*.txt", **{"rotate-wait": "1h"})
    append(tmp_path / "a.txt", "1\nha")
    append(tmp_path / "b.txt", "2\n")
    assert reader.step() == ["1", "2"]
    append(tmp_path / "a.txt", "lf\n")
    assert reader.step() == ["half"]


def test_a_file_of_a_folder_that_was_quiet_is_read_whole(tmp_path: Path, clock: FileClock) -> None:
    """The last one by name is not: it may still be written."""
    reader = Reader(tmp_path, "*.txt", **{"rotate-wait": "1h"})
    for name in "abc":
        append(tmp_path / f"{name}.txt", f"{name}1\n{name}2")
        clock.age(tmp_path / f"{name}.txt", 4000)
    assert reader.step() == ["a1", "a2", "b1", "b2", "c1"]
    append(tmp_path / "d.txt", "d1\n")
    assert reader.step() == ["c2", "d1"]


def test_half_a_line_that_comes_while_a_quiet_file_is_opened(
    tmp_path: Path, clock: FileClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was complete when it was looked at, and is not any more: its writer is in the middle of a line."""
    reader = Reader(tmp_path, "*.txt", **{"rotate-wait": "1h"})
    log, opened, late = tmp_path / "a.txt", step_ranges.open_found, ["ha"]
    append(log, "1\n")
    append(tmp_path / "b.txt", "2\n")
    clock.age(log, 4000)

    def open_later(found: FoundFile) -> OpenFile | None:
        if found.url == str(log) and late:
            clock.append(log, late.pop())
        return opened(found)

    monkeypatch.setattr(step_ranges, "open_found", open_later)
    assert reader.step() == ["1", "2"]
    clock.append(log, "lf\n")
    assert reader.step() == ["half"]


@pytest.mark.parametrize(("settings", "last"), [({}, []), ({"read-unterminated": "true"}, ["c2"])])
def test_a_folder_of_files_whose_last_lines_have_no_end(
    tmp_path: Path, clock: FileClock, settings: dict[str, str], last: list[str]
) -> None:
    """They were written a moment ago: a run that drains waits until each was unchanged long enough."""
    reader = Reader(tmp_path, "*.txt", **{"rotate-wait": "400ms", "unterminated-wait": "200ms"}, **settings)
    for name in "abc":
        clock.append(tmp_path / f"{name}.txt", f"{name}1\n{name}2")
    with capture_logs() as logs:
        assert reader.step(drain=True) == ["a1", "a2", "b1", "b2", "c1", *last]
    assert [line["bytes"] for line in logs] == ([] if last else ["3 to 5"])


def test_an_earlier_name_that_comes_later_is_not_the_last_file(tmp_path: Path) -> None:
    """The last file is the last by name, not the last one found."""
    reader = Reader(tmp_path, "*.txt", **AT_ONCE)
    append(tmp_path / "m.txt", "m1\nm2")
    assert reader.step() == ["m1"]
    append(tmp_path / "a.txt", "a1\na2")
    assert reader.step() == ["a1", "a2"]
    append(tmp_path / "z.txt", "z1\n")
    assert reader.step() == ["m2", "z1"]


# -- remote files ---------------------------------------------------------------------------------------------------


def test_a_remote_file(tmp_path: Path, clock: FileClock) -> None:
    """No inode, no times: known by name and content; unchanged since it was first seen like this."""
    url = "elsewhere://half-lines/app.log"
    elsewhere = Elsewhere()
    elsewhere.pipe("/half-lines/app.log", b"a\nhalf")
    try:
        reader = Reader(tmp_path, url, **{"unterminated-wait": "200ms"})
        assert reader.step(drain=True) == ["a"]
        assert clock.seconds == pytest.approx(0.2, abs=0.06)
        elsewhere.pipe("/half-lines/app.log", b"a\nhalf\nb\n")
        assert reader.step(drain=True, n=3) == ["half", "b"]
        assert reader.step(drain=True) == []
        elsewhere.pipe("/half-lines/app.log", b"other\nhalf\nb\nc\n")
        assert reader.step() == ["other", "half", "b", "c"]
    finally:
        elsewhere.rm("/half-lines", recursive=True)
