"""Locks, records and marks of the shared server, and processes by id and start time. No Spark."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conduit_dagster import processes
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.spark.server_files import ServerFiles, SparkServer
from conduit_dagster.spark.server_launch import digests, server_conf
from conduit_dagster.spark.spark_settings import SparkSettings


def _server(pid: int, started: str, port: int = 1) -> SparkServer:
    return SparkServer(pid, started, port, "secret", time.time(), "4.3.0", "python", {"a": "b"})


@pytest.fixture
def files(tmp_path: Path) -> ServerFiles:
    made = ServerFiles(tmp_path / ".conduit")
    made.make()
    return made


def test_what_is_written_is_read_and_only_by_its_user(files: ServerFiles) -> None:
    server = _server(1, "2")
    files.write(server)
    assert files.read() == server
    assert stat.S_IMODE((files.folder / "server.json").stat().st_mode) == 0o600
    session = files.hold_session("x")
    made = [files.folder, *files.folder.rglob("*")]
    assert {one.name for one in made} >= {"server.log", "lock", "sessions"}
    assert [one.name for one in made if one.stat().st_mode & 0o077] == []
    session.release()
    assert "secret" not in repr(server)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_damaged_record_is_none(files: ServerFiles, text: str) -> None:
    (files.folder / "server.json").write_text(text)
    assert files.read() is None


def test_a_record_of_a_newer_version_is_read(files: ServerFiles) -> None:
    """After a step back: a server that counted as none would run on beside a second one."""
    server = _server(1, "2")
    (files.folder / "server.json").write_text(json.dumps({**dataclasses.asdict(server), "more": 1}))
    assert files.read() == server


def test_the_record_of_another_server_is_not_forgotten(files: ServerFiles) -> None:
    files.write(_server(1, "2"))
    files.forget(_server(1, "3"))
    assert files.read() is not None
    files.forget(files.read())
    assert files.read() is None


def test_a_lock_that_another_process_holds_is_waited_for_and_named(files: ServerFiles) -> None:
    hold = (
        f"import fcntl,sys; f=open({str(files.folder / 'lock')!r},'a'); fcntl.flock(f,2); print(1,flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        with pytest.raises(TransientError) as caught, files.locked(0.2):
            pass
        assert caught.value.code == "spark.server_busy"
        holder.kill()
    with files.locked(10):
        pass


def test_a_session_counts_until_it_is_released(files: ServerFiles) -> None:
    mark = files.hold_session("run")
    assert [(one["pid"], one["name"]) for one in files.sessions()] == [(os.getpid(), "run")]
    mark.release()
    assert files.sessions() == []


def test_a_child_that_execs_does_not_hold_the_session(files: ServerFiles) -> None:
    mark = files.hold_session("run")
    with subprocess.Popen(["sleep", "600"]) as child:
        # closed without a message, as when the process is killed
        mark._file.close()
        assert files.sessions() == []
        child.kill()


def test_a_process_is_known_by_its_start(tmp_path: Path) -> None:
    own = processes.started_at(os.getpid())
    assert own is not None
    assert processes.is_alive(os.getpid(), own)
    assert not processes.is_alive(os.getpid(), own + "0")


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.started_at(child.pid) is None
    child.wait()


def test_who_ignores_sighup_is_killed() -> None:
    code = "import signal; signal.signal(1, signal.SIG_IGN); print(1, flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        assert processes.end(child.pid, processes.started_at(child.pid) or "", 0.3)
        assert child.wait() == -signal.SIGKILL


def test_only_the_process_that_listens_is_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, subprocess.Popen(["sleep", "600"]) as other:
        port = listener.getsockname()[1]
        assert processes.is_up(os.getpid(), port)
        if sys.platform == "linux":
            assert not processes.is_up(other.pid, port)
        other.kill()
    assert not processes.is_up(os.getpid(), port)


def test_the_users_conf_has_the_last_word_and_digests_hide_it() -> None:
    conf = server_conf(SparkSettings("shared", {"spark.driver.memory": "9g", "x.password": "hidden"}))
    assert conf["spark.driver.memory"] == "9g"
    assert conf["spark.connect.session.manager.defaultSessionTimeout"] == "7d"
    assert "hidden" not in str(digests(conf))


@pytest.mark.slow
def test_a_parent_without_workers_ends_by_itself(socket_folder: Path) -> None:
    """Addressed as the JVM does; see ``test_worker_daemon``. Its imports take longer than two of its checks."""
    environment = {
        **os.environ,
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(socket_folder),
        "SPARK_REUSE_WORKER": "1",
        "CONDUIT_WORKER_DAEMON_SECONDS": "0.5",
    }
    command = [sys.executable, "-m", "conduit_dagster.spark.worker_daemon", "pyspark.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        (size,) = struct.unpack("!i", parent.stdout.read(4))
        path = parent.stdout.read(size).decode()
        held = os.pidfd_open(parent.pid)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as jvm:
            jvm.connect(path)
            assert len(jvm.recv(4)) == 4
            assert not select.select([held], [], [], 2)[0], "it ended under a worker"
        assert select.select([held], [], [], 60)[0], "it did not end"
        os.close(held)
    assert not Path(path).exists()
