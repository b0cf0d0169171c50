"""Cost of an idle pipeline: CPU time of ``run`` and all of its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

_PIPELINE = """
version: "2.2"
pipelines:
  - id: quiet
    connectors:
      - {id: in, type: source, plugin: "builtin:file", settings: {path: ./in/}}
      - {id: out, type: destination, plugin: "builtin:file", settings: {path: ./out.jsonl}}
"""
_BEFORE, _MEASURED = 30.0, 60.0
"""Seconds until the waits have their full length, and of the measurement."""
_PATIENCE = 300.0


def quiet(root: Path, files: int) -> dict[str, Any]:
    """Return the CPU usage of a pipeline that has read a folder of ``files`` files, in percent of a core."""
    (root / "pipelines").mkdir()
    (root / "pipelines" / "quiet.yaml").write_text(_PIPELINE)
    (root / "in").mkdir()
    then = time.time() - 60
    for number in range(files):
        path = root / "in" / f"{number:08d}.jsonl"
        path.write_bytes(b'{"n":%d}\n' % number)
        os.utime(path, (then, then))
    command = [sys.executable, "-m", "conduit_dagster.cli.main", "run"]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        try:
            _await(root / "out.jsonl", files, run)
            time.sleep(_BEFORE)
            before = _cpu_seconds(run.pid)
            time.sleep(_MEASURED)
            # the time of a worker that ends meanwhile is lost
            used = sum(seconds - before.get(pid, 0.0) for pid, seconds in _cpu_seconds(run.pid).items())
        finally:
            run.send_signal(signal.SIGINT)
    return {"files": files, "percent_of_a_core": round(100 * used / _MEASURED, 2)}


def _await(output: Path, lines: int, run: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _PATIENCE
    while not output.exists() or len(output.read_bytes().splitlines()) < lines:
        if run.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the run did not deliver {lines} records: see {output.parent}")
        time.sleep(0.5)


def _cpu_seconds(pid: int) -> dict[int, float]:
    parent = psutil.Process(pid)
    times = {process.pid: process.cpu_times() for process in (parent, *parent.children(recursive=True))}
    return {process: one.user + one.system for process, one in times.items()}
