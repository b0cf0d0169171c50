"""Files that one step runs through, and the jumps between them, on the driver and in the task.

``python -m benchmarks.trace_step`` runs a pipeline with two processors and traces its second step: the first one
compiles. The task runs in this process, so that it can be traced; ``max-in-flight`` is 1, so that no other step
interferes. ``--jumps`` prints each jump as well, in order: caller, function called.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from benchmarks import engine
from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.engine.spark_tasks import Task
from conduit_dagster.recovery import kill_points
from conduit_dagster.spark.session import close_session, open_session
from conduit_dagster.spark.spark_settings import SparkSettings

ROOT = f"{Path(__file__).parents[1]}/"
STEP = 2
PIPELINE = """
version: "2.2"
pipelines:
  - id: bench
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: ./in.jsonl}}
      - {id: out, type: destination, plugin: file, settings: {path: ./out.jsonl}}
    processors:
      - {id: decode, plugin: json.decode, settings: {field: .Payload.After}}
      - {id: rename, plugin: field.rename, settings: {mapping: ".Payload.After.i:n"}}
    delivery: {strategy: exactly-once, batch-size: 100, max-in-flight: 1}
    dead-letter-queue: {plugin: file, window-size: 0, settings: {path: ./dead.jsonl}}
"""


class Trace:
    """Calls between files of the project: by side, the calls of each file and the jumps in order."""

    def __init__(self) -> None:
        self.files: dict[str, Counter[str]] = {"driver": Counter(), "task": Counter()}
        self.jumps: dict[str, list[str]] = {"driver": [], "task": []}
        self._passed = Counter[str]()
        self._thread = 0
        """The thread that runs the traced step; others, such as the lease's heartbeat, call at any time."""
        self._is_task = False

    def hook(self, point: str, _: str) -> None:
        """Trace from the plan of the second step to its ack."""
        self._passed[point] += 1
        if self._passed[point] == STEP and point in ("before-plan", "after-ack"):
            self._thread = threading.get_ident() if point == "before-plan" else 0

    def run_tasks(self, count: int, task: Task, queries: Any = None) -> list[bytes]:
        """Stand in for ``Jobs.each``: run the tasks sequentially in this process."""
        del queries
        self._is_task = True
        try:
            return [task(number) for number in range(count)]
        finally:
            self._is_task = False

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """Profile function for ``sys.setprofile``."""
        if event != "call" or self._thread != threading.get_ident():
            return
        here = frame.f_code.co_filename
        if not _is_ours(here):
            return
        side = "task" if self._is_task else "driver"
        self.files[side][here.removeprefix(ROOT)] += 1
        caller = frame.f_back
        while caller is not None and not _is_ours(caller.f_code.co_filename):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != here:
            self.jumps[side].append(f"{_place(caller)}:{caller.f_lineno} -> {_place(frame)}")


def _is_ours(file: str) -> bool:
    return file.startswith(f"{ROOT}conduit_dagster/")


def _place(frame: FrameType) -> str:
    file = frame.f_code.co_filename.removeprefix(f"{ROOT}conduit_dagster/")
    return f"{file} {frame.f_code.co_qualname}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace_step", description="Files and jumps of a step.")
    parser.add_argument("--jumps", action="store_true", help="print each jump as well, in order")
    with_jumps = parser.parse_args().jumps
    trace = Trace()
    spark = open_session(SparkSettings(url="local[1]"), "trace")
    with tempfile.TemporaryDirectory() as folder, patch.object(Jobs, "each", trace.run_tasks):
        root = Path(folder)
        (root / "pipelines").mkdir()
        (root / "pipelines" / "bench.yaml").write_text(PIPELINE)
        (root / "in.jsonl").write_text("".join(json.dumps({"i": i}) + "\n" for i in range(300)))
        kill_points.hook = trace.hook
        threading.setprofile(trace.profile)
        sys.setprofile(trace.profile)
        engine.drain(root, spark)
        sys.setprofile(None)
    close_session(spark)
    for side, files in trace.files.items():
        print(f"{side}: {len(files)} files, {len(trace.jumps[side])} jumps")
        for file, calls in sorted(files.items()):
            print(f"  {calls:5} {file}")
        for jump in trace.jumps[side] if with_jumps else ():
            print(f"  {jump}")


if __name__ == "__main__":
    main()
