"""The delta destination: however often a delivery is repeated, by any process, its rows are in the table once."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from lab.delta_deliveries import ids, make, numbers, records, stage
from lab.delta_rows import column
from lab.kills import hooked
from lab.waiting import at_once

from conduit_dagster.builtin_plugins import DESTINATIONS
from conduit_dagster.connectors.columnar import parquet_writer as columns_writer
from conduit_dagster.connectors.delta.destination import DeltaDestination
from conduit_dagster.sdk import WriterTask


def test_the_name_in_a_pipeline_file_finds_it() -> None:
    assert DESTINATIONS.find("builtin:delta", {}) is DeltaDestination


def test_deliveries_follow_each_other(tmp_path: Path) -> None:
    destination = make(tmp_path)
    destination.check()
    for step, tasks in ((1, [numbers(1, 2), numbers(3)]), (2, [numbers(4)])):
        delivery = stage(destination, step, tasks)
        assert not destination.holds(delivery)
        assert destination.publish(delivery) == delivery.target
        assert destination.holds(delivery)
    assert ids(tmp_path) == [1, 2, 3, 4]
    assert column(tmp_path / "table", "i") == [1, 2, 3, 4]
    assert DeltaTable(tmp_path / "table").count() == 4


def test_nothing_is_visible_before_publish(tmp_path: Path) -> None:
    """A new table is created while staging, and is empty."""
    stage(make(tmp_path), 1, [numbers(1, 2)])
    assert ids(tmp_path) == []


def test_a_repeat_commits_nothing(tmp_path: Path) -> None:
    destination = make(tmp_path)
    delivery = stage(destination, 1, [numbers(1, 2), numbers(3)])
    destination.publish(delivery)
    version = DeltaTable(tmp_path / "table").version()
    destination.publish(delivery)
    make(tmp_path).publish(delivery)
    assert destination.settled(delivery) == delivery.target
    assert DeltaTable(tmp_path / "table").version() == version
    assert ids(tmp_path) == [1, 2, 3]


def test_a_repeat_needs_no_staging(tmp_path: Path) -> None:
    """The engine removes it once the step is done."""
    destination = make(tmp_path)
    delivery = stage(destination, 1, [numbers(1)])
    destination.publish(delivery)
    for path in Path(delivery.staging).iterdir():
        path.unlink()
    destination.publish(delivery)
    assert destination.holds(delivery)
    assert ids(tmp_path) == [1]


@pytest.mark.parametrize("step", [1, 2])
def test_many_publishers_of_one_delivery_commit_it_once(tmp_path: Path, step: int) -> None:
    """All pass the check before any commits; step 2 has a transaction of step 1 before it."""
    if step == 2:
        make(tmp_path).publish(stage(make(tmp_path), 1, [numbers(0)]))
    delivery = stage(make(tmp_path), step, [numbers(1, 2), numbers(3)])
    barrier = threading.Barrier(4)
    destinations = [make(tmp_path) for _ in range(4)]
    before = DeltaTable(tmp_path / "table").version()
    with hooked(lambda point, pipeline: barrier.wait(120)):
        at_once(lambda number: destinations[number].publish(delivery), 4)
    assert DeltaTable(tmp_path / "table").version() == before + 1
    assert ids(tmp_path) == [0, 1, 2, 3][2 - step :]


def test_two_pipelines_and_two_connectors_share_a_table(tmp_path: Path) -> None:
    """Same step, other consumer: another transaction."""
    one, two = make(tmp_path, "one"), make(tmp_path, "two")
    assert one.owned is None
    assert one.address == two.address == str(tmp_path / "table")
    for destination, number in ((one, 1), (two, 2)):
        destination.publish(stage(destination, 1, [numbers(number)]))
    assert sorted(ids(tmp_path)) == [1, 2]


def test_late_dead_letters_of_one_step_are_deliveries_of_their_own(tmp_path: Path) -> None:
    destination = make(tmp_path)
    letters = [
        replace(stage(destination, 5, [numbers(n)], f"t{n}"), hash=f"{n:02x}" * 32, skip=n * (1 << 40))
        for n in (0, 1, 2)
    ]
    for delivery in [*letters, *letters]:
        destination.publish(delivery)
    assert sorted(ids(tmp_path)) == [0, 1, 2]
    assert all(destination.holds(delivery) for delivery in letters)


def test_a_copy_of_a_project_never_touches_the_files_of_the_other(tmp_path: Path) -> None:
    """It has the same delivery hashes: under the same name the delivery exists, under another it is a different one."""
    first, copy = make(tmp_path), make(tmp_path, app_id="copy")
    one, two = stage(first, 1, [numbers(1)]), stage(copy, 1, [numbers(2)], "copy")
    assert one.hash == two.hash
    first.publish(one)
    copy.publish(two)
    assert sorted(ids(tmp_path)) == [1, 2]


def test_the_same_rows_in_other_blocks_are_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery restages a lost part and compares digests; several row groups, each with its own pages."""
    monkeypatch.setattr(columns_writer, "ROW_GROUP_BYTES", 4 << 20)
    destination = make(tmp_path, columns="i:long, s:string, n:double")
    documents = [{"i": n, "s": f"{n:x}" * (n % 50), **({"n": n / 3} if n % 3 else {})} for n in range(60_000)]
    parts = []
    for size in (100, 777, 5_000, 60_000):
        writer = destination.writer(WriterTask(destination.staging("") + f"/{size}", 0, "r"))
        for start in range(0, len(documents), size):
            assert not writer.write(records(*documents[start : start + size]))
        parts.append(writer.finish())
    assert len({(part.records, part.bytes, part.sha256) for part in parts if part}) == 1
    read = pq.ParquetFile(Path(destination.staging(""), "777", "00000-r.parquet"))
    assert read.metadata.num_row_groups > 1
    assert read.read()["i"].to_pylist() == list(range(60_000))


def test_a_task_without_rows_has_no_part(tmp_path: Path) -> None:
    writer = make(tmp_path).writer(WriterTask(str(tmp_path / "staging"), 0, "t"))
    assert list(writer.write([])) == []
    assert writer.finish() is None
    writer.abort()
    assert not (tmp_path / "staging").exists()
