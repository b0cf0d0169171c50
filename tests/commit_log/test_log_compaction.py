"""What compaction keeps, and that nothing is lost or duplicated wherever it is interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.commit_log_lab import PIPELINE, SOURCE, LogLab, surviving
from lab.kills import at, crashing

from conduit_dagster import storage
from conduit_dagster.commit_log.compaction import Compacted, Compactor, handled_upto
from conduit_dagster.commit_log.entries import decode_batch
from conduit_dagster.commit_log.segment_files import MissingPartError, read, read_current
from conduit_dagster.commit_log.segment_layout import hidden
from conduit_dagster.config.delivery import LogRetention
from conduit_dagster.state.deletion import delete_state
from conduit_dagster.state.lease import LeaseLost, Transactions, acquire

OLD = "AABBAABBCACBAACBA"
ACTIVE = "AABBAABBCACBAACBA"
POINTS = [
    "before-compact",
    "mid-compact-write",
    "after-compact-write",
    "after-compact-swap",
    "mid-compact-remove",
    "after-compact",
]
KILLS = [(point, n) for point in POINTS for n in ((1,) if point in (POINTS[0], POINTS[-1]) else (1, 2, 3))]
"""Points and passages: a compaction begins and ends once, and three of the segments below have something to remove."""


def reference_log(log: LogLab, files: int = 3) -> None:
    """The example of reference 4."""
    log.append(OLD, files=files)
    log.append(ACTIVE, size=0)


def files(log: LogLab, segment: int = 0) -> list[str]:
    return log.folder.names(segment)


def test_c15_the_example_of_the_reference(log: LogLab) -> None:
    reference_log(log)
    log.move("c0", A=26, B=23, C=27)
    active = files(log, 17)
    done = log.compact("c0")
    assert (done.segments, done.entries) == (1, 14)
    assert done.bytes > 0
    assert [(seen.offset, seen.namespace) for seen in log.read(0, 17)] == [(14, "C"), (15, "B"), (16, "A")]
    assert log.offsets(17) == list(range(17, 34))
    assert files(log, 17) == active
    (old, _) = log.parts()
    assert (old.first, old.next, old.entries, old.compacted, old.position) == (0, 17, 3, True, {"at": 17})
    assert files(log) == [old.name]


def test_again_changes_nothing(log: LogLab) -> None:
    reference_log(log)
    log.move("c0", all=33)
    log.compact("c0")
    before = log.parts(), files(log), files(log, 17)
    assert log.compact("c0") == Compacted()
    assert (log.parts(), files(log), files(log, 17)) == before


@pytest.mark.parametrize("consumers", [[], ["c1"], ["c0", "c1"]])
def test_c16_nothing_while_somebody_has_acknowledged_nothing(log: LogLab, consumers: list[str]) -> None:
    reference_log(log)
    log.move("c0", all=33)
    before = log.parts(), files(log)
    assert log.compact(*consumers) == Compacted()
    assert (log.parts(), files(log)) == before


def test_what_one_of_two_consumers_needs_stays(log: LogLab) -> None:
    reference_log(log)
    log.move("c0", all=33)
    log.move("c1", all=4, A=9)
    log.compact("c0", "c1")
    # everything of A up to 9 and of the others up to 4 is handled; 5 and 9 are A's
    assert log.offsets(0, 17) == [6, 7, 8, 10, 11, 12, 13, 14, 15, 16]
    log.move("c1", all=33, A=33)
    log.compact("c0", "c1")
    assert log.offsets(0, 17) == [14, 15, 16]


def test_a_namespace_without_an_offset_is_not_handled(log: LogLab) -> None:
    reference_log(log)
    log.move("c0", A=33)
    log.compact("c0")
    assert [seen.offset for seen in log.read(0, 17) if seen.namespace != "A"] == [2, 3, 6, 7, 8, 10, 11, 14, 15]
    assert [seen.offset for seen in log.read(0, 17) if seen.namespace == "A"] == [16]


def test_each_closed_segment_keeps_its_own_last_entries(log: LogLab) -> None:
    for _ in range(3):
        log.append("AAB", size=0)
    log.move("c0", all=8)
    assert log.compact("c0").segments == 2
    assert log.offsets() == [1, 2, 4, 5, 6, 7, 8]


def test_long_namespaces_that_share_a_row_go_by_the_overall_offset() -> None:
    """The table truncates them: one consumer's offset must not count for the other."""
    offsets = {"c0": {"n" * 256: 90, "*": 10, "short": 50}}
    assert handled_upto("n" * 256, ["c0"], offsets) == 10
    assert handled_upto("n" * 300, ["c0"], offsets) == 10
    assert handled_upto("short", ["c0"], offsets) == 50
    assert handled_upto("other", ["c0"], offsets) == 10
    assert handled_upto("short", ["c0", "c1"], offsets) == -1
    assert handled_upto("short", [], offsets) == -1


def test_nacked_entries_are_counted_anew(log: LogLab) -> None:
    log.append("AAA", nacked=[0, 2])
    log.roll()
    log.move("c0", all=3)
    log.compact("c0")
    assert [(part.entries, part.nacked) for part in log.parts(0, 3)] == [(1, 1)]
    assert log.read(0, 3)[0].nack == "node"


@pytest.mark.parametrize("start", range(18))
def test_c18_a_removed_offset_gives_the_next_that_survives(local_log: LogLab, start: int) -> None:
    reference_log(local_log)
    local_log.move("c0", all=33)
    local_log.compact("c0")
    assert local_log.offsets(start)[0] == (start if start >= 14 else 14)


def segments_of_three(log: LogLab) -> int:
    """Four closed segments of three handled entries, and an active one; return the bytes of the smallest."""
    for _ in range(5):
        log.append("AAB", size=0)
    log.move("c0", all=14)
    return min(part.bytes for part in log.parts())


@pytest.mark.parametrize(("age", "gone"), [(0, 0), (6.9, 0), (7, 4), (1e6, 4)])
def test_segments_younger_than_the_retention_stay_whole(log: LogLab, age: float, gone: int) -> None:
    """A segment is as old as its newest entry."""
    segments_of_three(log)
    done = log.compact("c0", retention=LogRetention(time=7), now=age)
    assert (done.segments, done.entries) == (gone, gone)
    assert len(log.offsets()) == 15 - gone


@pytest.mark.parametrize(("bytes_kept", "whole"), [(0.5, 1), (1, 1), (1.5, 2), (2, 2), (3.5, 4), (9, 4)])
def test_the_newest_closed_segments_stay_up_to_the_retained_bytes(log: LogLab, bytes_kept: float, whole: int) -> None:
    """At least that many bytes, in whole segments: the log is complete from their first entry on."""
    size = segments_of_three(log)
    log.compact("c0", retention=LogRetention(bytes=int(size * bytes_kept)))
    first = 12 - 3 * whole
    assert log.offsets(first) == list(range(first, 15))
    assert log.offsets(0, first) == [offset for offset in range(first) if offset % 3]


def test_what_is_beyond_either_limit_is_compacted(log: LogLab) -> None:
    size = segments_of_three(log)
    old = LogRetention(time=7, bytes=9 * size)
    assert log.compact("c0", retention=old, now=8).segments == 4
    for _ in range(2):
        log.append("AAB", size=0)
    log.move("c0", all=20)
    assert log.compact("c0", retention=LogRetention(time=7, bytes=size), now=1).segments == 1
    assert log.offsets(15) == list(range(15, 21))


def test_a_segment_compacted_before_the_retention_was_set_has_an_age_still(log: LogLab) -> None:
    segments_of_three(log)
    log.compact("c0")
    assert log.compact("c0", retention=LogRetention(time=7), now=1) == Compacted()


@pytest.mark.parametrize(("point", "times"), KILLS)
def test_c17_killed_at_any_point(log: LogLab, point: str, times: int) -> None:
    """Every entry that is needed is readable, none is duplicated, and the next compaction finishes and cleans up."""
    reference_log(log)
    log.append(OLD, size=0)
    log.append(["A"], size=0)
    log.move("c0", A=12, B=33, C=51)
    log.move("c1", all=43)
    with crashing(point, times):
        log.compact("c0", "c1")
    handled = {"A": 12, "B": 33, "C": 43}
    wanted = surviving([*OLD, *ACTIVE, *OLD, "A"], [0, 17, 34, 51], lambda offset, name: offset <= handled[name])
    offsets = log.offsets()
    assert offsets == sorted(set(offsets))
    assert set(wanted) <= set(offsets)
    log.compact("c0", "c1")
    assert log.offsets() == wanted
    for segment in (0, 17, 34, 51):
        assert files(log, segment) == [part.name for part in log.parts() if part.segment == segment]


def test_files_that_a_killed_task_left_go(log: LogLab) -> None:
    """Those of the active segment stay: somebody may be writing them."""
    reference_log(log)
    log.write(0, 0, ["zombie"])
    log.write(17, 34, ["being written"])
    log.compact("c0")
    assert len(files(log)) == 3
    assert len(files(log, 17)) == 2


def test_files_that_have_no_name_yet_get_it(log: LogLab) -> None:
    """The driver died between the manifest and the rename."""
    parts = log.append(OLD, publish=False)
    log.roll()
    assert files(log) == [hidden(parts[0].name)]
    log.compact()
    assert files(log) == [parts[0].name]
    assert log.offsets(0, 17) == list(range(17))


def test_a_reader_goes_on_when_its_files_are_taken_away(log: LogLab) -> None:
    """Those that follow the manifest; the others find out by ``log.missing``."""
    reference_log(log)
    log.move("c0", all=33)
    held = log.parts()
    blocks = read_current(log.folder, log.parts, 0, None, block=2)
    seen = decode_batch(next(blocks)).offsets
    log.compact("c0")
    for batch in blocks:
        seen += decode_batch(batch).offsets
    assert seen[:2] == [0, 1]
    assert seen == sorted(set(seen))
    assert set(range(17, 34)) | {14, 15, 16} <= set(seen)
    with pytest.raises(MissingPartError):
        list(read(log.folder, held))


def test_a_reader_of_a_log_that_is_deleted_does_not_take_that_for_its_end(log: LogLab) -> None:
    reference_log(log)
    blocks = read_current(log.folder, log.parts, 0, None, block=2)
    next(blocks)
    lease = acquire(log.database, PIPELINE, 60.0)
    delete_state(Transactions(log.database, lease), PIPELINE, lambda connection: None)
    lease.release()
    for segment in (0, 17):
        storage.remove_folder(log.folder.segment(segment))
    with pytest.raises(MissingPartError):
        list(blocks)


def test_two_at_once_is_one(log: LogLab) -> None:
    reference_log(log)
    log.move("c0", all=33)
    with at("after-compact-write", lambda: log.compact("c0")):
        assert log.compact("c0") == Compacted()
    assert log.offsets() == [14, 15, 16, *range(17, 34)]
    log.compact("c0")
    assert files(log) == [log.parts()[0].name]


def test_a_frozen_owner_changes_nothing_when_it_thaws(log: LogLab) -> None:
    """The new owner may have removed its file: the manifest must not name it."""
    reference_log(log)
    log.move("c0", all=33)
    lease = acquire(log.database, PIPELINE, 60)

    def taken_over() -> None:
        lease.release()
        newer = acquire(log.database, PIPELINE, 60)
        # a consumer without any ack: the new owner cleans up, but compacts nothing
        Compactor(log.folder, log.store, Transactions(log.database, newer).run).compact(["c0", "c1"])
        newer.release()

    with at("after-compact-write", taken_over), pytest.raises(LeaseLost):
        Compactor(log.folder, log.store, Transactions(log.database, lease).run).compact(["c0"])
    assert log.offsets() == list(range(34))


def test_damage_is_not_made_permanent(local_log: LogLab) -> None:
    reference_log(local_log, files=1)
    local_log.move("c0", all=33)
    path = Path(local_log.folder.segment(0), local_log.parts()[0].name)
    data = path.read_bytes()
    created_by = data.rindex(b"parquet-cpp")  # unused text in the footer
    path.write_bytes(data[:created_by] + b"P" + data[created_by + 1 :])
    assert local_log.offsets(0, 17) == list(range(17))
    damaged = local_log.compact("c0").damaged
    assert damaged is not None and damaged.code == "log.corrupt"
    assert files(local_log) == [path.name]


@pytest.mark.parametrize("retention", [None, LogRetention(time=7)])
def test_a_lost_file_holds_up_its_own_segment_only(local_log: LogLab, retention: LogRetention | None) -> None:
    for _ in range(4):
        local_log.append(OLD, size=0)
    local_log.move("c0", all=67)
    (lost,) = local_log.parts(17, 34)
    Path(local_log.folder.segment(17), lost.name).unlink()
    done = local_log.compact("c0", retention=retention, now=8)
    assert done.damaged is not None and done.damaged.code == "log.missing"
    assert "rewind" not in (done.damaged.fix or ""), "it would deliver again what is handled"
    assert (done.segments, len(local_log.offsets(0, 17)), len(local_log.offsets(34, 51))) == (2, 3, 3)


def test_logs_of_other_sources_are_left_alone(log: LogLab) -> None:
    """One name is a prefix of the other, whose offsets say that everything is handled too."""
    other = LogLab(log.base, log.database, SOURCE + "2")
    for one in (log, other):
        reference_log(one)
        one.move("c0", all=33)
    before = other.parts(), files(other), other.read()
    assert log.compact("c0").entries == 14
    assert (other.parts(), files(other), other.read()) == before
    assert other.compact("c0").entries == 14
