"""A worker whose JVM is gone ends quietly. Addressed as the JVM does: over the daemon's socket."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from lab.waiting import wait_until


def told_by_a_worker_that_is_left(module: str, folder: Path, early: bool = False) -> str:
    """The stderr output when the JVM leaves a worker that waits for its next task; ``early``: before it is forked."""
    environment = {
        **os.environ,
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    command = [sys.executable, "-m", module, "pyspark.worker"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        (size,) = struct.unpack("!i", daemon.stdout.read(4))
        path = daemon.stdout.read(size).decode()
        if early:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as jvm:
                jvm.connect(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as jvm:
            jvm.connect(path)
            (worker,) = struct.unpack("!i", jvm.recv(4))
            held = os.pidfd_open(worker)
        # it ends by itself, before the daemon would kill it
        assert select.select([held], [], [], 90)[0], "the worker did not end"
        os.close(held)
        wait_until(lambda: not psutil.Process(daemon.pid).children(), "the other worker ends")
        _, told = daemon.communicate(timeout=90)
    return told.decode()


@pytest.mark.parametrize("early", [False, True])
def test_a_worker_that_its_jvm_left_says_nothing(socket_folder: Path, early: bool) -> None:
    assert told_by_a_worker_that_is_left("conduit_dagster.spark.worker_daemon", socket_folder, early) == ""


def test_pysparks_own_prints_a_stack_trace(socket_folder: Path) -> None:
    """Why there is one of ours: the day this fails it can be removed."""
    told = told_by_a_worker_that_is_left("pyspark.daemon", socket_folder)
    assert "BrokenPipeError" in told


@pytest.mark.skipif(sys.platform != "linux", reason="it looks at a process's memory map")
def test_what_tasks_need_is_imported_before_the_first_worker() -> None:
    """Otherwise each worker imports pandas by itself, in its first task."""
    command = [sys.executable, "-m", "conduit_dagster.spark.worker_daemon", "pyspark.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.read(4), "it tells its port once it takes workers"
        loaded = Path(f"/proc/{daemon.pid}/maps").read_text()
        daemon.communicate(timeout=90)
    assert "/pandas/" in loaded and "/pyarrow/" in loaded


COLLECTED = """
import gc
import conduit_dagster.engine.stage
from conduit_dagster.engine.spark_tasks import quiet_collector
frozen = []
for task in range(2):
    with quiet_collector():
        assert not gc.isenabled()
    assert gc.isenabled()
    frozen.append(gc.get_freeze_count())
print(*frozen)
"""


def test_what_a_worker_has_imported_is_collected_once() -> None:
    """PySpark collects after each task. What the first one froze stays frozen in later ones."""
    told = subprocess.run([sys.executable, "-c", COLLECTED], capture_output=True, text=True, check=True).stdout
    first, second = map(int, told.split())
    assert first == second > 10_000
