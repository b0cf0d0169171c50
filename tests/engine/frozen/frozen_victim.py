"""A process that runs many pipelines, each to its point, and stops itself there: ``frozen_victim.py CASES SPARK_URL``.

``CASES`` is a JSON file: root, pipeline, point and passage of each. What was reached goes to ``CASES.reached`` before
the stop; how the runs ended after it, to ``CASES.ended``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from engine.frozen.owners import SILENT, Owners
from pyspark.sql import SparkSession

from conduit_dagster.recovery import kill_points
from conduit_dagster.spark.session import SparkSettings, open_session

_RUNS = 3
"""A pipeline whose destination fails in bulk goes on with its children in its next run."""


class Stops:
    """Hold each pipeline's thread at its point."""

    def __init__(self, cases: list[dict[str, Any]]) -> None:
        self._wanted = {case["pipeline"]: (case["point"], case["passage"]) for case in cases}
        self._passed: Counter[tuple[str, str]] = Counter()
        self._changed = threading.Condition()
        self._thaw = threading.Event()
        self.frozen: set[str] = set()
        self.ended: dict[str, dict[str, Any]] = {}

    def reached(self, point: str, pipeline: str) -> None:
        """The kill points' hook."""
        with self._changed:
            self._passed[pipeline, point] += 1
            if self._wanted[pipeline] != (point, self._passed[pipeline, point]):
                return
            self.frozen.add(pipeline)
            self._changed.notify_all()
        self._thaw.wait()

    def run(self, case: dict[str, Any], session: SparkSession) -> None:
        """Run a pipeline until it has been frozen and thawed."""
        name = case["pipeline"]
        for _ in range(_RUNS):
            result = Owners(Path(case["root"]), session).take(name, SILENT)
            if name in self.frozen:
                break
        with self._changed:
            self.ended[name] = result.as_json()
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until every pipeline is at its point, or has ended without reaching it."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.frozen | self.ended.keys()) == len(self._wanted))

    def thaw(self) -> None:
        """Let all of them continue."""
        self._thaw.set()


def main(file: Path, url: str) -> None:
    """Run them all."""
    cases = json.loads(file.read_text())
    session = open_session(SparkSettings(url=url), "frozen")
    stops = Stops(cases)
    kill_points.hook = stops.reached
    threads = [threading.Thread(target=stops.run, args=(case, session)) for case in cases]
    for thread in threads:
        thread.start()
    stops.wait()
    file.with_suffix(".reached").write_text(json.dumps(sorted(stops.frozen)))
    os.kill(os.getpid(), signal.SIGSTOP)
    stops.thaw()
    for thread in threads:
        thread.join()
    file.with_suffix(".ended").write_text(json.dumps(stops.ended))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
