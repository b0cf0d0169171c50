"""Faults of disks, stores, logs and clocks: each recovers or stops with one clear error; nothing acked is lost."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from lab.postgres_server import PostgresServer
from lab.small_disk import fill, mounted
from lab.support import DECODE, Crashes, Lab, destination, queue, source
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from conduit_dagster.cli.main import main
from conduit_dagster.engine.report import RunProgress, RunResult, StepReport
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.recovery.errors import FatalError

ROWS = [{"i": i} for i in range(200)]


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", ROWS)
    return lab


def build(lab: Lab, **delivery: Any) -> None:
    lab.pipeline(
        connectors=[source(), destination()],
        processors=[DECODE],
        delivery={"strategy": "exactly-once", **delivery},
        **{"dead-letter-queue": queue()},
    )


def failed(result: RunResult, code: str, fatal: bool) -> None:
    assert result.error is not None
    assert (result.error.code, result.error.fatal) == (code, fatal)
    assert result.error.fix


def test_a_disk_that_is_full_while_a_segment_is_written(lab: Lab) -> None:
    build(lab, log="records", **{"batch-size": 50})
    with mounted(lab.root / ".conduit" / "log", "512k") as disk:
        (lab.root / "in.jsonl").write_text("")
        assert lab.run().error is None
        ballast = fill(disk, 4_096)
        lab.write("in.jsonl", [{"i": i, "text": f"{i}" * 200} for i in range(200)])
        failed(lab.run(), "file.disk_full", fatal=False)
        assert lab.lines("out.jsonl") == []
        ballast.unlink()
        assert lab.run().error is None
        assert [row["i"] for row in lab.documents("out.jsonl")] == list(range(200))


def test_a_disk_that_is_full_while_a_step_is_staged(lab: Lab) -> None:
    build(lab)
    with mounted(lab.root / ".conduit" / "staging", "64k") as disk:
        ballast = fill(disk, 0)
        failed(lab.run(), "file.disk_full", fatal=False)
        assert lab.lines("out.jsonl") == []
        ballast.unlink()
        assert lab.run().error is None
        assert lab.documents("out.jsonl") == ROWS


@pytest.mark.slow
def test_a_store_that_is_away_for_ten_seconds_is_waited_for(lab: Lab, postgres_server: PostgresServer) -> None:
    """Nothing unprepared is published meanwhile, and nothing is published twice.

    It is waited for longer here than by default: a busy machine may take a minute to start a server that crashed.
    """
    assert RunOptions("").patience >= 30
    lab.env["CONDUIT_STATE_URL"] = postgres_server.create_database()
    build(lab, **{"batch-size": 50})
    began: list[float] = []

    def away(step: StepReport, progress: RunProgress) -> None:
        if not began:
            began.append(time.monotonic())
            postgres_server.stop(immediate=True)
            threading.Timer(10, postgres_server.start).start()

    try:
        result = lab.run(observe=away, patience=200)
    finally:
        if not postgres_server.is_running:
            postgres_server.start()
    assert result.error is None
    assert time.monotonic() - began[0] >= 10
    assert lab.documents("out.jsonl") == ROWS
    assert lab.run().progress.read == 0


def test_a_log_whose_folder_was_deleted_is_named(lab: Lab, crashes: Crashes) -> None:
    build(lab, log="records")
    crashes(lab, "after-log")
    log = lab.root / ".conduit" / "log"
    shutil.move(log, lab.root / "kept")
    failed(lab.run(), "log.missing", fatal=True)
    assert lab.lines("out.jsonl") == []
    shutil.move(lab.root / "kept", log)
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == ROWS


def test_a_log_that_is_gone_under_a_prepared_step_is_given_up_as_the_fix_says(lab: Lab, crashes: Crashes) -> None:
    """The fix was a rewind, which a prepared step refuses, with the fix to run it first."""
    build(lab, log="records", **{"batch-size": 150})
    crashes(lab, "after-prepare")
    shutil.rmtree(lab.root / ".conduit" / "staging" / "p")
    shutil.rmtree(lab.root / ".conduit" / "log" / "p")
    result = lab.run()
    failed(result, "log.missing", fatal=True)
    assert result.error is not None and "give the destination (out) another id" in (result.error.fix or "")
    another = destination("out2", "./out.jsonl")
    lab.pipeline(connectors=[source(), another], processors=[DECODE], delivery={"log": "records"})
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == ROWS[150:]


def test_a_lost_file_of_what_is_delivered_stops_no_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended each run whose log rolled, and its fix would have delivered again what was delivered."""
    build(lab, log="records", **{"batch-size": 50, "log-segment-size": 1})
    assert lab.run().error is None
    kept = {"log-retention": {"time": "0.1s"}}
    log = lab.root / ".conduit" / "log" / "p" / "in"
    lost = min(log.rglob("*.parquet"))
    lost.unlink()
    lab.write("in.jsonl", [{"i": i} for i in range(200, 400)], mode="a")
    build(lab, log="records", **{"batch-size": 50, "log-segment-size": 1}, **kept)
    with capture_logs() as logged:
        assert lab.run().error is None
    assert [row["i"] for row in lab.documents("out.jsonl")] == list(range(400))
    told = [line for line in logged if line["event"] == "a part of the log can't be compacted"]
    assert told and "is missing" in told[0]["cause"] and "put the file back" in told[0]["fix"]
    monkeypatch.chdir(lab.root)
    assert main(["log", "show", "p", "--from", "0"]) == main(["log", "compact", "p"]) == 1


def in_column(part: Path, name: str) -> int:
    """A byte inside a column's data."""
    group = pq.ParquetFile(part).metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    (column,) = [one for one in columns if one.path_in_schema == name]
    return column.data_page_offset + column.total_compressed_size - 3


def test_a_corrupted_segment_is_named(lab: Lab, crashes: Crashes) -> None:
    build(lab, log="records")
    crashes(lab, "after-log")
    [part] = (lab.root / ".conduit" / "log" / "p" / "in").rglob("*.parquet")
    sound = part.read_bytes()
    at = in_column(part, "after")
    part.write_bytes(sound[:at] + bytes([sound[at] ^ 0xFF]) + sound[at + 1 :])
    failed(lab.run(), "log.corrupt", fatal=True)
    part.write_bytes(sound)
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == ROWS


def test_a_store_of_another_project_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    first, second = Lab(tmp_path / "a", spark), Lab(tmp_path / "b", spark)
    for lab in (first, second):
        lab.write("in.jsonl", ROWS)
        build(lab)
        assert lab.run().error is None
    second.env["CONDUIT_STATE_URL"] = f"sqlite:///{first.root}/.conduit/state.db"
    with pytest.raises(FatalError) as error:
        second.run()
    assert error.value.code == "state.foreign"
    assert error.value.fix
    assert first.run().progress.read == 0


def test_a_clock_that_is_set_back_an_hour_changes_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    build(lab, log="records", **{"batch-size": 50})
    assert lab.run().error is None
    real_ns, real = time.time_ns, time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: real_ns() - 3_600_000_000_000)
        patch.setattr(time, "time", lambda: real() - 3_600)
        lab.write("in.jsonl", [{"i": 200}], mode="a")
        assert lab.run().error is None
        assert lab.run().progress.read == 0
    lab.write("in.jsonl", [{"i": 201}], mode="a")
    assert lab.run().error is None
    assert [row["i"] for row in lab.documents("out.jsonl")] == list(range(202))
