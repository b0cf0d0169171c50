"""``spark start``, ``stop`` and ``status``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from lab.jvm_options import archive_switch

from conduit_dagster.cli.verb_session import spark_settings
from conduit_dagster.config.project import Project
from conduit_dagster.spark.server_files import ServerFiles, SparkServer


def test_without_a_server_status_and_stop_say_so_and_make_nothing(run, project: Path) -> None:
    ran = run("spark", "status", "--json")
    assert (ran.code, ran.envelope["result"]) == (0, {"running": False, "log": None})
    ran = run("spark", "stop", "--json")
    assert (ran.code, ran.envelope["result"]) == (0, {"stopped": False})
    assert "conduit-dagster spark start" in run("spark", "status").out
    assert not (project / ".conduit").exists()


def test_a_server_that_does_not_answer_is_an_error(run, project: Path) -> None:
    """This process is alive and does not listen anywhere."""
    from conduit_dagster.processes import started_at

    files = ServerFiles(project / ".conduit")
    files.make()
    files.write(
        SparkServer(os.getpid(), started_at(os.getpid()) or "", 1, "secret", time.time(), "4.3.0", "python", {})
    )
    ran = run("spark", "status", "--json")
    assert ran.code == 1
    assert (ran.envelope["error"]["code"], ran.envelope["result"]["answers"]) == ("spark.unreachable", False)
    assert "secret" not in ran.out
    assert "does not answer" in run("spark", "status").out


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process without a session, on a user's machine."""
    monkeypatch.setattr("conduit_dagster.spark.session.has_classic", lambda: False)
    for name in ("PYSPARK_GATEWAY_PORT", "CI"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("text", "server", "url"),
    [
        ("", False, "local[*]"),
        ("", True, "shared"),
        ("spark: shared\n", False, "shared"),
        ("spark.url: local[3]\n", True, "local[3]"),
        ("spark: {idle-timeout: 1m}\n", False, "local[*]"),
    ],
)
def test_what_the_settings_mean(folder: Path, free: pytest.MonkeyPatch, text: str, server: bool, url: str) -> None:
    (folder / "conduit.yaml").write_text(text)
    project = Project.find(folder)
    assert project.findings == ()
    found = spark_settings(project, server=server)
    assert (found.url, found.home) == (url, folder / ".conduit")
    assert found.idle == (60 if "1m" in text else 600)


@pytest.mark.parametrize(
    ("said", "url"), [("true", "local[*]"), ("1", "local[*]"), ("false", "shared"), ("", "shared")]
)
def test_in_ci_no_server_is_left_behind(folder: Path, free: pytest.MonkeyPatch, said: str, url: str) -> None:
    free.setenv("CI", said)
    assert spark_settings(Project.find(folder)).url == url


def test_a_process_with_a_session_keeps_it(folder: Path, free: pytest.MonkeyPatch) -> None:
    free.setattr("conduit_dagster.spark.session.has_classic", lambda: True)
    assert spark_settings(Project.find(folder)).url == "local[*]"


@pytest.mark.slow
def test_start_status_stop(shell, monkeypatch) -> None:
    monkeypatch.setenv("CONDUIT_SPARK_ARCHIVE", archive_switch())
    first = shell.ended(shell.spawn("spark", "start", "--json"), 600)
    try:
        assert (first.code, first.envelope["result"]["started"]) == (0, True)
        again = shell.run("spark", "start", "--json")
        assert (again.envelope["result"]["started"], again.envelope["result"]["pid"]) == (
            False,
            first.envelope["result"]["pid"],
        )
        status = shell.run("spark", "status", "--json").envelope["result"]
        assert (status["answers"], status["sessions"], status["url"]) == (True, [], first.envelope["result"]["url"])
        assert "answers" in shell.run("spark", "status").out
    finally:
        stopped = shell.run("spark", "stop", "--json")
    assert stopped.envelope["result"]["pid"] == first.envelope["result"]["pid"]
    assert not shell.run("spark", "status", "--json").envelope["result"]["running"]


def _lines(project: Path) -> list[str]:
    return (project / "orders.jsonl").read_text().splitlines()


@pytest.mark.slow
def test_a_run_leaves_its_server_to_the_next_one(shell, project: Path) -> None:
    """It says so once; another server, or none, must be requested."""
    env = {**os.environ, "CI": "", "CONDUIT_SPARK_ARCHIVE": archive_switch()}
    try:
        first = shell.ended(shell.spawn("run", "--once", env=env), 600)
        pid = shell.run("spark", "status", "--json").envelope["result"]["pid"]
        with (project / "in.jsonl").open("a") as more:
            more.write('{"id": 3}\n')
        second = shell.run("run", "--once", env=env)
        status = shell.run("spark", "status", "--json").envelope["result"]
        assert (first.code, second.code, status["pid"], status["sessions"]) == (0, 0, pid, [])
        assert "started a Spark server for this project's commands; it ends 10m after its last use" in first.err
        assert "Spark server" not in second.err
        assert [json.loads(line)["id"] for line in _lines(project)] == [1, 2, 3]
    finally:
        shell.run("spark", "stop")
    alone = shell.run("run", "--once", "--no-server", env=env)
    assert (alone.code, "Spark server" in alone.err) == (0, False)
    assert not shell.run("spark", "status", "--json").envelope["result"]["running"]
