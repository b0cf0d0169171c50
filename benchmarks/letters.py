"""A step whose records are all nacked, and the time to list its dead letters."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import engine
from benchmarks.bench import Bench
from benchmarks.data import generate
from benchmarks.processes import Peak, watching
from benchmarks.setup import Setup, to_file

_ALL_BAD = {"id": "bad", "plugin": "error", "settings": {"message": "not this one"}}
_TIMES = 3


class Looked(NamedTuple):
    """Cost of a command in its own process."""

    seconds: float
    """Wall-clock seconds, including the start of Python; minimum of a few runs."""
    megabytes: float
    """Peak of its resident memory."""


def letters(bench: Bench) -> dict[str, Any]:
    """Measure ``dlq list`` beside the same command for a pipeline without letters, the minimum cost of a command."""
    root, source = bench.work / "letters", generate(bench.work, bench.records)
    setup = Setup([to_file("out.jsonl", "file")], "exactly-once")
    setup.write(root, generate(bench.work, 1_000))
    engine.drain(root, bench.spark)
    none = _look(root, "--code", "nothing")
    replace(setup, more=(_ALL_BAD,)).write(root, source)
    peak = Peak()
    with watching(peak):
        seconds = engine.drain(root, bench.spark)
    return {"records": bench.records, "letters": _facts(root, seconds, peak, none)}


def _facts(root: Path, seconds: float, peak: Peak, none: Looked) -> dict[str, Any]:
    looks = {
        "list": _look(root),
        "by_reason": _look(root, "--by-reason"),
        "where": _look(root, "--where", "after.amount > 50", times=1),
    }
    return {
        "run_seconds": round(seconds, 1),
        "run_python_mb": peak.as_json()["python_mb"],
        "none": none._asdict(),
        **{name: looked._asdict() for name, looked in looks.items()},
    }


def _look(root: Path, *words: str, times: int = _TIMES) -> Looked:
    seconds, megabytes = zip(*(_once(root, words) for _ in range(times)), strict=True)
    return Looked(round(min(seconds), 2), round(max(megabytes)))


def _once(root: Path, words: tuple[str, ...]) -> tuple[float, float]:
    command = [sys.executable, "-m", "conduit_dagster.cli.main", "dlq", "list", "bench", *words, "--json"]
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, command
    return time.perf_counter() - began, used.ru_maxrss / 1024
