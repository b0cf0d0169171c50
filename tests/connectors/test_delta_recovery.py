"""The delta destination after a crash, beside other writers, and with changed state or a changed table."""

from __future__ import annotations

import errno
import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from lab.delta_deliveries import ids, make, numbers, records, stage
from lab.delta_rows import column
from lab.kills import at, crashing
from lab.small_disk import no_file_beyond

from conduit_dagster.connectors.delta import commits
from conduit_dagster.connectors.delta.table import DeltaTableLog
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import WriterTask


def test_a_frozen_owner_thaws_after_its_successor(tmp_path: Path) -> None:
    """It checked the table before, and commits after, another owner's commit of the same and later steps."""
    delivery = stage(make(tmp_path), 1, [numbers(1)])

    def meanwhile() -> None:
        successor = make(tmp_path)
        successor.publish(delivery)
        successor.publish(stage(successor, 2, [numbers(2)]))

    with at("mid-publish", meanwhile), pytest.raises(FatalError) as raised:
        make(tmp_path).publish(delivery)
    assert raised.value.code == "delta.transaction_taken"
    assert ids(tmp_path) == [1, 2]


def test_a_crash_between_files_and_commit(tmp_path: Path) -> None:
    """The placed files are invisible, and are the ones that the repeat commits."""
    destination = make(tmp_path)
    delivery = stage(destination, 1, [numbers(1), numbers(2)])
    with crashing("mid-publish"):
        destination.publish(delivery)
    placed = sorted((tmp_path / "table").glob("*.parquet"))
    assert len(placed) == 2
    assert ids(tmp_path) == []
    assert not make(tmp_path).holds(delivery)
    make(tmp_path).publish(delivery)
    assert ids(tmp_path) == [1, 2]
    assert sorted((tmp_path / "table").glob("part*")) == placed


def test_files_that_a_crash_left_weeks_ago_are_safe_from_a_vacuum_before_their_commit(tmp_path: Path) -> None:
    destination = make(tmp_path)
    delivery = stage(destination, 1, [numbers(1)])
    with crashing("mid-publish"):
        destination.publish(delivery)
    (placed,) = (tmp_path / "table").glob("part*")
    os.utime(placed, (0, 0))
    with at("mid-publish", lambda: DeltaTable(str(tmp_path / "table")).vacuum(dry_run=False, full=True)):
        make(tmp_path).publish(delivery)
    assert ids(tmp_path) == [1]


@pytest.mark.parametrize("torn", [lambda whole: whole[:9], lambda whole: bytes(len(whole))])
def test_a_torn_file_of_a_crash_is_put_right(tmp_path: Path, torn: Any) -> None:
    destination = make(tmp_path)
    delivery = stage(destination, 1, [numbers(1)])
    with crashing("mid-publish"):
        destination.publish(delivery)
    placed = next((tmp_path / "table").glob("*.parquet"))
    whole = placed.read_bytes()
    placed.unlink()
    placed.write_bytes(torn(whole))
    destination.publish(delivery)
    assert ids(tmp_path) == [1]


def test_a_staged_part_that_was_cut_is_named(tmp_path: Path) -> None:
    destination = make(tmp_path)
    delivery = stage(destination, 1, [numbers(1)])
    os.truncate(Path(delivery.staging, delivery.parts[0].name), 10)
    with pytest.raises(FatalError) as raised:
        destination.publish(delivery)
    assert raised.value.code == "delivery.staging_damaged"
    assert ids(tmp_path) == []


def test_commits_of_others_in_between_are_fine(tmp_path: Path) -> None:
    destination = make(tmp_path)
    first, second = stage(destination, 1, [numbers(1)]), stage(destination, 2, [numbers(2)])

    def foreign() -> None:
        write_deltalake(tmp_path / "table", pa.table({"i": [100]}), mode="append")

    for delivery in (first, second):
        with at("mid-publish", foreign):
            destination.publish(delivery)
    assert column(tmp_path / "table", "i") == [1, 2, 100, 100]


def test_a_table_where_others_are_always_faster_is_transient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign commit follows each check of the table: attempts are bounded, nothing is written."""
    monkeypatch.setattr(commits, "ATTEMPTS", 3)
    destination, opened = make(tmp_path), DeltaTableLog.open
    delivery = stage(destination, 1, [numbers(1)])

    def look(self: DeltaTableLog) -> DeltaTable | None:
        table = opened(self)
        write_deltalake(tmp_path / "table", pa.table({"i": [100]}), mode="append")
        return table

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTableLog, "open", look)
        with pytest.raises(TransientError) as raised:
            destination.publish(delivery)
    assert raised.value.code == "delta.contended"
    assert not destination.holds(delivery)
    destination.publish(delivery)
    assert destination.holds(delivery)


def test_state_that_was_lost_drops_nothing_silently(tmp_path: Path) -> None:
    """The same step under another hash, and a lower one, are refused until the destination has its own name."""
    destination = make(tmp_path)
    destination.publish(stage(destination, 3, [numbers(1)]))
    for step in (3, 1):
        anew = replace(stage(destination, step, [numbers(2)], "anew"), hash="ee" * 32)
        for ask in (destination.holds, destination.publish):
            with pytest.raises(FatalError) as raised:
                ask(anew)
            assert raised.value.code == "delta.transaction_taken"
            assert "app-id" in str(raised.value.fix)
    make(tmp_path, app_id="second").publish(anew)
    assert sorted(ids(tmp_path)) == [1, 2]


def test_another_path_under_a_prepared_step_is_refused(tmp_path: Path) -> None:
    delivery = stage(make(tmp_path), 1, [numbers(1)])
    for ask in (make(tmp_path, path="other").holds, make(tmp_path, path="other").publish):
        with pytest.raises(FatalError) as raised:
            ask(delivery)
        assert raised.value.code == "delivery.target_changed"


def test_a_disk_that_takes_no_more_is_an_error_of_the_system(tmp_path: Path) -> None:
    """Here: the limit on a file's size. It stops the run; no record becomes a nack."""
    destination = make(tmp_path, columns="s:string")
    writer = destination.writer(WriterTask(destination.staging("") + "/full", 0, "t"))
    assert not writer.write(records(*({"s": secrets.token_hex(500)} for _ in range(200))))
    with no_file_beyond(10_000):
        with pytest.raises(OSError) as raised:
            writer.finish()
        writer.abort()
    assert raised.value.errno == errno.EFBIG


def test_a_table_that_is_gone_is_fatal(tmp_path: Path) -> None:
    destination = make(tmp_path)
    delivery = stage(destination, 1, [numbers(1)])
    (tmp_path / "table" / "_delta_log").rename(tmp_path / "gone")
    assert not destination.holds(delivery)
    with pytest.raises(FatalError) as raised:
        destination.publish(delivery)
    assert raised.value.code == "delta.table_gone"


def test_a_log_that_cannot_be_read_is_one_short_error(tmp_path: Path) -> None:
    destination = make(tmp_path)
    destination.publish(stage(destination, 1, [numbers(1)]))
    log = sorted((tmp_path / "table" / "_delta_log").glob("*.json"))[-1]
    log.write_text('{"x')
    with pytest.raises(TransientError) as raised:
        destination.check()
    assert raised.value.code == "delta.failed"
    assert "\n" not in raised.value.message
