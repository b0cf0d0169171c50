"""One run of an engine as a separate process, until the last record is in its destination."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.compare import Taken
from benchmarks.processes import machine_cpu_seconds

_POLL = 0.05
_PATIENCE = 120.0
"""Seconds within which an output must grow, and the limit of a stop."""
_MOST = 3_600.0
LOG = "engine.log"
"""Name of the file with the engine's output, in the run's folder."""
TEMPORARY = "tmp"
"""Name of the temporary folder, in the run's folder."""


def run_to_its_end(command: Sequence[str], root: Path) -> Taken:
    """Measure from the start until the process has ended. Raises if it fails."""
    before, began = machine_cpu_seconds(), time.perf_counter()
    with _started(command, root) as process:
        try:
            code = process.wait(_MOST)
        finally:
            _stop(process)
    taken = Taken(time.perf_counter() - began, machine_cpu_seconds() - before)
    if code:
        raise RuntimeError(f"{command[0]} ended with {code}: {_last_words(root)}")
    return taken


def run_until_there(command: Sequence[str], root: Path, output: Path, wanted: int) -> Taken:
    """Measure until ``output`` has ``wanted`` lines, for an engine that runs until stopped; its stop is not timed.

    The end is the time of the last write. Raises if the engine ends before, or the output stops growing.
    """
    before, began = machine_cpu_seconds(), time.time()
    with _started(command, root) as process:
        try:
            last, cpu = _await(process, output, wanted)
        finally:
            _stop(process)
    return Taken(last - began, cpu - before)


def _started(command: Sequence[str], root: Path) -> subprocess.Popen[bytes]:
    """Start with separate temporary files, so that it finds nothing that an earlier run left running."""
    temporary = root / TEMPORARY
    temporary.mkdir(exist_ok=True)
    with (root / LOG).open("wb") as log:
        return subprocess.Popen(command, cwd=root, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(temporary)})


def _await(process: subprocess.Popen[bytes], output: Path, wanted: int) -> tuple[float, float]:
    """Return the time of the last write, and the machine's CPU seconds then. Counts lines only when writes pause."""
    lines, counted, size, grown = 0, 0, 0, time.monotonic()
    while time.monotonic() < grown + _PATIENCE:
        time.sleep(_POLL)
        known, size = size, output.stat().st_size if output.exists() else 0
        if size != known:
            grown = time.monotonic()
        elif size != counted:
            cpu, last = machine_cpu_seconds(), output.stat().st_mtime
            lines, counted = lines + _lines(output, counted, size), size
            if lines >= wanted:
                return last, cpu
        if process.poll() is not None:
            break
    raise RuntimeError(f"{process.args}: {lines} of {wanted} records in {output}: {_last_words(output.parent)}")


def _lines(path: Path, start: int, end: int) -> int:
    with path.open("rb") as file:
        file.seek(start)
        return sum(file.read(min(1 << 20, end - at)).count(b"\n") for at in range(start, end, 1 << 20))


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_words(root: Path) -> str:
    return (root / LOG).read_text(errors="replace")[-2_000:]
