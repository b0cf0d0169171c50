"""Runs as in a container: first process, an image that can't be written, no home, a host name that nobody resolves."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from lab.waiting import whole_lines

_ISOLATED = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
_CONTAINER = """
set -e
hostname nobody-knows-this-host
mount -o remount,ro,bind /
mount --bind /tmp /tmp && mount -o remount,ro,bind /tmp
mount --bind "$0" "$0" && mount -o remount,rw,bind "$0"
mount -t tmpfs tmpfs /mnt
cd "$0"
exec "$@"
"""


@pytest.fixture
def contained(shell, project: Path):
    """Commands run in a container that can write the project, and temporary files under ``TMPDIR``."""
    tried = subprocess.run([*_ISOLATED, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"namespaces are not permitted here: {tried.stderr.strip()}")
    shell.command = (*_ISOLATED, "sh", "-c", _CONTAINER, str(project), *shell.command)
    return shell


@pytest.mark.slow
def test_a_run_is_the_first_process_of_a_container_and_stops_gracefully(contained, project: Path) -> None:
    env = {**os.environ, "HOME": "/nonexistent", "TMPDIR": "/mnt"}
    process = contained.spawn("run", "--json", env=env)
    contained.wait_until(process, lambda: len(whole_lines(project / "orders.jsonl")) == 2, "two records are delivered")
    (first,) = psutil.Process(process.pid).children()
    first.send_signal(signal.SIGTERM)
    ran = contained.ended(process)
    assert ran.code == 0, ran.err
    (one,) = ran.envelope["result"]["pipelines"]
    assert (one["status"], one["reason"], one["records"]["read"]) == ("stopped", "system", 3)
    assert "Traceback" not in ran.err and "\tat " not in ran.err
