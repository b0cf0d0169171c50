"""Staging, commit log, archive, a source's file and a Delta table on a real S3 server, which also goes away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from lab.delta_deliveries import make, stage
from lab.kills import at, crashing
from lab.modules import ROOT
from lab.recovery_lab import in_background, keeper, names
from lab.s3_lost_answers import refusing_removals
from lab.s3_server import NoS3Error, S3Server
from lab.support import DECODE, Crashes, Lab, destination, queue
from lab.waiting import wait_until
from pyspark.sql import SparkSession

from conduit_dagster import storage
from conduit_dagster.cli.main import main
from conduit_dagster.connectors.delta.table import DeltaTableLog
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.recovery.policy import Policy

pytestmark = pytest.mark.slow
COUNT, EACH = 60, 20
BAD = range(3, COUNT, 20)
GOOD = [i for i in range(COUNT) if i not in BAD]
POLICY = Policy(min_delay=0.2, max_delay=1.0, window=0.5)


@pytest.fixture(scope="module")
def s3(spark: SparkSession) -> Iterator[S3Server]:
    pytest.importorskip("s3fs")
    try:
        server = S3Server()
    except NoS3Error as error:
        pytest.skip(f"no S3: {error}")
    own = {**server.environment, "AWS_MAX_ATTEMPTS": "1"}
    workers, kept = spark.sparkContext.environment, dict(spark.sparkContext.environment)
    with server, pytest.MonkeyPatch.context() as patched:
        for name, value in own.items():
            patched.setenv(name, value)
        workers.update(own)  # Spark starts workers of their own for it
        yield server
        workers.clear()
        workers.update(kept)


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession, s3: S3Server) -> Lab:
    lab = Lab(tmp_path, spark)
    base = s3.url(tmp_path.name)
    (tmp_path / "conduit.yaml").write_text(f"state: {{staging: '{base}/staging', log: '{base}/log'}}\n")
    lines = ["{bad" if i in BAD else json.dumps({"i": i}) for i in range(COUNT)]
    assert storage.put_new(f"{base}/in.jsonl", "\n".join([*lines, ""]).encode())
    lab.pipeline(
        delivery={"strategy": "exactly-once", "batch-size": EACH, "log": "records", "log-segment-size": 1},
        connectors=[
            {"id": "in", "type": "source", "plugin": "file", "settings": {"path": f"{base}/in.jsonl"}},
            {"id": "table", "type": "destination", "plugin": "delta", "settings": {"path": f"{base}/table"}},
            destination(),
        ],
        processors=[DECODE],
        **{"dead-letter-queue": queue()},
    )
    return lab


def require_once(lab: Lab, s3: S3Server) -> None:
    """Every record is at its destinations once, and nothing of it is left in the staging folders."""
    name = lab.root.name
    rows = DeltaTable(s3.url(name, "table")).to_pyarrow_table().column("i").to_pylist()
    assert sorted(rows) == GOOD
    assert [row["i"] for row in lab.documents("out.jsonl")] == GOOD
    assert len(lab.letters()) == len(BAD)
    assert [key for key in s3.keys(name) if "staging" in key] == ["staging/p/~project"]


@pytest.mark.parametrize("point", ["after-log-stage", "after-stage", "after-prepare", "mid-publish", "before-done"])
def test_everything_is_there_once_after_a_crash_at_each_line(
    lab: Lab, s3: S3Server, crashes: Crashes, point: str
) -> None:
    crashes(lab, f"{point}:2")
    assert lab.run().error is None
    require_once(lab, s3)


def test_a_killed_command_is_finished_and_the_verbs_read_what_is_there(
    lab: Lab, s3: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CONDUIT_SPARK_URL": "local[1]", "CONDUIT_KILL_AT": "mid-publish:3"}
    command = [sys.executable, "-m", "conduit_dagster.cli.main", "run", "--once"]
    ran = subprocess.run(command, cwd=lab.root, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert lab.run().error is None
    require_once(lab, s3)
    monkeypatch.chdir(lab.root)

    def result(*words: str) -> Any:
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["result"]

    assert "{bad" in json.dumps(result("dlq", "show", "p/1.0"))
    # every closed segment keeps its last entry
    offsets = [entry["offset"] for entry in result("log", "show", "p", "--from", "0")["entries"]]
    assert offsets[:2] == [EACH - 1, 2 * EACH - 1] and offsets[-1] == COUNT - 1
    assert result("pipelines", "delete", "p", "--force")
    assert [key for key in s3.keys(lab.root.name) if key.startswith(("log", "staging"))] == []


@pytest.mark.parametrize("point", ["before-stage", "after-prepare", "mid-publish"])
def test_a_store_that_goes_away_is_waited_for(lab: Lab, s3: S3Server, point: str) -> None:
    with keeper(lab, POLICY) as one, at(point, s3.stop, 2):
        thread, results = in_background(lambda: one.run(lambda: lab._spark))  # type: ignore[arg-type, return-value]
        try:
            wait_until(lambda: names(lab).count("waiting") >= 2, "it was restarted while the store was away")
        finally:
            s3.start()
        thread.join(120)
    assert [result.error for result in results] == [None]
    require_once(lab, s3)


def test_rows_that_a_crash_left_weeks_ago_are_safe_from_a_vacuum_before_their_commit(
    tmp_path: Path, s3: S3Server
) -> None:
    """A vacuum that had looked for unused files before the commit removed one that the commit named."""
    table = s3.url(tmp_path.name, "table")
    destination = make(tmp_path, path=table)
    delivery = stage(destination, 1, [[{"i": 1}]])
    with crashing("mid-publish"):
        destination.publish(delivery)
    (placed,) = (s3.bucket_folder / tmp_path.name / "table").glob("part-*")
    os.utime(placed, (0, 0))
    with at("mid-publish", lambda: DeltaTable(table).vacuum(dry_run=False, full=True)):
        make(tmp_path, path=table).publish(delivery)
    assert DeltaTable(table).to_pyarrow_table().to_pylist() == [{"i": 1}]


def test_a_wrong_secret_is_said_and_nothing_counts_as_damaged(lab: Lab, s3: S3Server, crashes: Crashes) -> None:
    crashes(lab, "after-prepare:2")
    with s3.other_secret():
        error = lab.run().error
        table = _failure(lambda: DeltaTableLog(s3.url(lab.root.name, "table")).open())
    assert error is not None and (error.code, error.fatal) == ("file.no_permission", False)
    assert (table.code, "signature" in table.message) == ("file.no_permission", True)
    for one in (error, table):
        assert s3.secret not in str(one.fields()) and s3.user not in str(one.fields()) and len(one.message) < 300
    assert lab.run().error is None
    require_once(lab, s3)


def test_doctor_writes_to_staging(
    lab: Lab, s3: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(lab.root)
    found = [_staging_check(capsys)]
    with s3.other_secret():
        found.append(_staging_check(capsys))
    assert [one["level"] for one in found] == ["ok", "fail"]
    assert "signature" in found[1]["message"] and "AWS_SECRET_ACCESS_KEY" in found[1]["fix"]
    assert [key for key in s3.keys(lab.root.name) if "doctor" in key] == []


def _staging_check(capsys: pytest.CaptureFixture[str]) -> Any:
    main(["doctor", "--json"])
    checks = json.loads(capsys.readouterr().out)["result"]["checks"]
    return next(check for check in checks if check["name"] == "staging")


def test_a_store_that_lets_nothing_be_removed_holds_up_nothing(
    lab: Lab, s3: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each run ended where the log was compacted, with `p failed: Access Denied`."""
    store = pytest.importorskip("s3fs").S3FileSystem
    (lab.root / "conduit.yaml").write_text(f"state: {{staging: ./staging, log: '{s3.url(lab.root.name)}/log'}}\n")
    with refusing_removals(s3.address) as address, monkeypatch.context() as patched:
        patched.setenv("AWS_ENDPOINT_URL", address)
        store.clear_instance_cache()
        assert lab.run().error is None
        patched.chdir(lab.root)
        assert "a file that is no longer needed can't be removed" in capsys.readouterr().out
        main(["doctor", "--json"])
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["result"]["checks"]}
    assert (checks["staging"]["level"], checks["log"]["level"]) == ("ok", "fail")
    assert "what is written to" in checks["log"]["message"] and "can't be removed" in checks["log"]["message"]
    store.clear_instance_cache()
    assert lab.run().error is None
    twice = [key for key in s3.keys(f"{lab.root.name}/log") if "/_" in key]
    assert all(f"segment={2 * EACH:020d}/" in key for key in twice), "only what is still written to"
    rows = DeltaTable(s3.url(lab.root.name, "table")).to_pyarrow_table().column("i").to_pylist()
    assert sorted(rows) == GOOD
    assert [row["i"] for row in lab.documents("out.jsonl")] == GOOD


def test_a_bucket_that_is_missing_is_said_and_not_made(lab: Lab, s3: S3Server) -> None:
    (lab.root / "conduit.yaml").write_text("state: {staging: 's3://nowhere/staging'}\n")
    error = lab.run().error
    assert error is not None and error.code == "file.missing" and "bucket does not exist" in error.message
    assert not (s3.bucket_folder.parent / "nowhere").exists()
    missing = _failure(lambda: DeltaTableLog("s3://nowhere/table").open())
    assert missing.message == "can't open the table s3://nowhere/table: The specified bucket does not exist."


def test_a_source_in_a_bucket_that_is_missing_is_said(lab: Lab, s3: S3Server) -> None:
    text = (lab.root / "pipelines" / "p.yaml").read_text()
    (lab.root / "pipelines" / "p.yaml").write_text(
        text.replace(s3.url(lab.root.name, "in.jsonl"), "s3://nowhere/in.jsonl")
    )
    error = lab.run().error
    assert error is not None and (error.code, error.node) == ("file.missing", "p:in")
    assert "bucket does not exist" in error.message


def test_a_folder_is_no_empty_file(lab: Lab, s3: S3Server) -> None:
    text = (lab.root / "pipelines" / "p.yaml").read_text()
    (lab.root / "pipelines" / "p.yaml").write_text(text.replace("/in.jsonl", ""))
    error = lab.run().error
    assert error is not None and (error.code, error.node) == ("file.missing", "p:in")


def test_what_others_write_and_remove_is_seen(s3: S3Server) -> None:
    folder = s3.url("seen")
    assert storage.put_new(f"{folder}/a/1", b"1") and not storage.put_new(f"{folder}/a/1", b"2")
    assert (storage.files(f"{folder}/a"), storage.folders(folder), storage.size(f"{folder}/a/1")) == (["1"], ["a"], 1)
    assert storage.size(f"{folder}/a") is None
    own = s3.bucket_folder / "seen" / "a"
    (own / "2").write_bytes(b"22")
    (own / "1").unlink()
    assert (storage.files(f"{folder}/a"), storage.size(f"{folder}/a/1"), storage.size(f"{folder}/a/2")) == (
        ["2"],
        None,
        2,
    )
    storage.remove_folder(f"{folder}/a")
    assert storage.files(f"{folder}/a") == storage.folders(folder) == []


def _failure(action: Callable[[], object]) -> TransientError:
    with pytest.raises(TransientError) as error:
        action()
    return error.value
