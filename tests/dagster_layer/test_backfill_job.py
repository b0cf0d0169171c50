"""Backfills of time partitions: what was logged within a time is sent again, to one destination or all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from dagster_layer.project_folder import Folder
from lab.waiting import wait_until

from conduit_dagster.assets import backfill_job
from conduit_dagster.assets.backfill_job import partitions_of
from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import open_catalogue
from conduit_dagster.state.history import events
from conduit_dagster.state.lease import acquire

TEXT = """
version: "2.2"
pipelines:
  - id: orders
    trigger: available-now
    fan-in: {fan_in}
    delivery: {{log: records, log-retention: {{time: 3d, partitions: {kind}}}}}
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: in.jsonl}}}}
      - {{id: out, type: destination, plugin: file, settings: {{path: out.jsonl, sdk.record.format: payload/json}}}}
      - {{id: copy, type: destination, plugin: file, settings: {{path: copy.jsonl, sdk.record.format: payload/json}}}}
    processors: [{processors}]
"""
DECODE = "{id: decode, plugin: json.decode, settings: {field: .Payload.After}}"
ONCE = '{id: once, plugin: deduplicate, settings: {key: after.n, window.records: "9"}}'


def _write(folder: Folder, kind: str = "daily", processors: str = DECODE, fan_in: str = "merge") -> None:
    folder.write("orders.yaml", TEXT.format(kind=kind, processors=processors, fan_in=fan_in))


def _numbers(folder: Folder, name: str) -> list[int]:
    return [json.loads(line)["n"] for line in (folder.root / f"{name}.jsonl").read_text().splitlines()]


def _backfill(folder: Folder, key: str, **config: Any) -> dg.ExecuteInProcessResult:
    job = folder.definitions.resolve_job_def("orders__backfill")
    ops = {"ops": {"orders__backfill_partition": {"config": config}}}
    return job.execute_in_process(ops, folder.instance, partition_key=key, raise_on_error=False)


@pytest.fixture(autouse=True)
def one_day() -> None:
    """A test that would begin shortly before midnight waits for it: its records would be yesterday's at its end."""

    def is_early() -> bool:
        now = datetime.now(UTC)
        return (now + timedelta(minutes=2)).date() == now.date()

    wait_until(is_early, "midnight is over", 180)


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


@pytest.fixture
def folder(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """With Dagster's own tables in files: in memory, SQLite refuses a reader while another thread's run writes."""
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster"))) as folder.instance:
        yield folder


@pytest.fixture
def ran(folder: Folder, spark: Any) -> Folder:
    _write(folder)
    folder.append(range(4))
    assert folder.run("orders").success
    return folder


@pytest.mark.slow
def test_a_partition_is_sent_again_at_once_to_one_destination_or_to_all(ran: Folder) -> None:
    ran.append(range(4, 5))
    assert _backfill(ran, _today(), destinations=["copy"]).success
    assert _numbers(ran, "out") == [0, 1, 2, 3], "nothing new is read"
    assert _numbers(ran, "copy") == [0, 1, 2, 3, 0, 1, 2, 3]
    assert ran.newest("orders", "copy")["partition"] == _today()
    yesterday = (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%d")
    result = _backfill(ran, yesterday)
    assert result.success
    assert _numbers(ran, "out") == [0, 1, 2, 3], "nothing was logged then"
    assert _backfill(ran, _today(), dry_run=True).success
    assert _backfill(ran, _today()).success
    assert _numbers(ran, "out") == [0, 1, 2, 3] * 2
    assert ran.run("orders").success
    assert _numbers(ran, "out") == [*[0, 1, 2, 3] * 2, 4]
    assert [one.event for one in events(ran.store, "orders", 100)].count("sent_again") == 3


def test_a_backfill_that_is_refused_sends_nothing(ran: Folder) -> None:
    assert not _backfill(ran, _today(), destinations=["out", "oout"]).success
    assert ran.run("orders").success
    assert _numbers(ran, "out") == [0, 1, 2, 3]


def test_an_hour_has_only_what_was_logged_in_it(folder: Folder, spark: Any) -> None:
    _write(folder, "hourly")
    folder.append(range(2))
    assert folder.run("orders").success
    now = datetime.now(UTC)
    partitions = partitions_of(open_catalogue(Project.find(folder.root, {})).bound[0], now)
    assert partitions is not None
    keys = partitions.get_partition_keys(now)
    assert keys[-1] == now.strftime("%Y-%m-%d-%H:00")
    assert len(keys) == 3 * 24 + 1
    assert _backfill(folder, keys[-2]).success
    assert _backfill(folder, keys[-1]).success
    sent = _numbers(folder, "out")
    # the hour may have ended between the run and the look at the clock
    assert sent == [0, 1, 0, 1]


def test_it_waits_for_a_pipeline_that_runs(ran: Folder) -> None:
    (ran.root / "conduit.yaml").write_text("state: {lease: 30s}\n")
    lease = acquire(ran.store, "orders", 1.0)
    try:
        failed = _backfill(ran, _today(), wait=0)
        assert not failed.success
        [event] = [event for event in failed.all_events if event.is_step_failure]
        assert "lease" in str(event.step_failure_data.user_failure_data)
    finally:
        lease.release()
    assert _numbers(ran, "out") == [0, 1, 2, 3]


def test_it_goes_on_once_the_pipeline_has_stopped(ran: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill_job, "_AGAIN", 1)
    (ran.root / "conduit.yaml").write_text("state: {lease: 30s}\n")
    lease = acquire(ran.store, "orders", 30.0)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(_backfill, ran, _today(), destinations=["out"])
        try:
            wait_until(lambda: _says(ran, "looking again in 1 s"), "the run waits")
        finally:
            lease.release()
        assert running.result().success
    assert _numbers(ran, "out") == [0, 1, 2, 3] * 2


def _says(folder: Folder, text: str) -> bool:
    runs = folder.instance.get_runs(dg.RunsFilter(job_name="orders__backfill"))
    return any(text in entry.user_message for run in runs for entry in folder.instance.all_logs(run.run_id))


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        ("hourly", "2026-11-22-14:00"),
        ("daily", "2026-11-22"),
        ("weekly", "2026-11-22"),
        ("weekly 4d", "2026-11-15"),
        ("monthly", "2026-11-01"),
    ],
)
def test_partitions_reach_as_far_back_as_the_log(folder: Folder, kind: str, first: str) -> None:
    """The three days before a Wednesday begin on a Sunday; four days before it is the week before."""
    _write(folder, kind.partition(" ")[0])
    file = folder.root / "pipelines" / "orders.yaml"
    file.write_text(file.read_text().replace("time: 3d", f"time: {kind.partition(' ')[2] or '3d'}"))
    bound = open_catalogue(Project.find(folder.root, {})).bound[0]
    now = datetime(2026, 11, 25, 14, 30, tzinfo=UTC)
    partitions = partitions_of(bound, now)
    assert partitions is not None
    assert partitions.get_partition_keys(now)[0] == first


def test_without_partitions_there_is_no_such_job(folder: Folder) -> None:
    folder.numbers()
    assert "numbers__backfill" not in folder.definitions.get_repository_def().job_names


@pytest.mark.parametrize(
    ("processors", "fan_in", "retention", "code"),
    [
        (ONCE, "merge", "time: 3d, partitions: daily", "destination.remembering"),
        (DECODE, "join", "time: 3d, partitions: daily", "destination.needs_log"),
        (DECODE, "merge", "bytes: 1GB, partitions: daily", "config.field_invalid"),
        (DECODE, "merge", "time: 3d, partitions: yearly", "config.field_invalid"),
    ],
)
def test_what_goes_with_no_partitions(folder: Folder, processors: str, fan_in: str, retention: str, code: str) -> None:
    text = TEXT.format(kind="daily", processors=processors, fan_in=fan_in)
    folder.write("orders.yaml", text.replace("time: 3d, partitions: daily", retention))
    found = open_catalogue(Project.find(folder.root, {})).findings
    assert code in [finding.code for finding in found], [finding.render() for finding in found]
