"""A process that runs many pipelines side by side and dies when each of them is at its kill point.

``kill_victim.py ROOT SPARK_URL CASES.json REPORT.json run|replay``. CASES maps pipelines to ``point:passage``; each is
run, or its dead letters are replayed. A pipeline that passes its point stands still there, with all its threads; when
every pipeline stands still or has ended, the process writes which did what, and kills itself. So one process gives as
many deaths as it has pipelines.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from engine.matrix.kill_runs import Runs

from conduit_dagster.recovery import kill_points
from conduit_dagster.spark.session import SparkSettings, open_session

ACTIVE = 6
"""Pipelines that move at a time; one that stands still makes room for the next."""


class Deaths:
    """The hook of the kill points."""

    def __init__(self, wanted: dict[str, str]) -> None:
        self._wanted = {pipeline: self._parse(kill) for pipeline, kill in wanted.items()}
        self._passed: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._room = threading.Semaphore(ACTIVE)
        self._over = threading.Semaphore(0)
        self.dead: set[str] = set()
        self.ended: dict[str, str] = {}

    @staticmethod
    def _parse(kill: str) -> tuple[str, int]:
        point, _, passage = kill.partition(":")
        return point, int(passage or 1)

    def __call__(self, point: str, pipeline: str) -> None:
        if self._is_dead(point, pipeline):
            threading.Event().wait()  # permanently

    def _is_dead(self, point: str, pipeline: str) -> bool:
        with self._lock:
            if pipeline in self.dead:
                return True  # another thread of the same owner: dead from its next kill point on
            self._passed[pipeline, point] += 1
            if self._wanted[pipeline] != (point, self._passed[pipeline, point]):
                return False
            self.dead.add(pipeline)
        self._leave()
        return True

    def enter(self) -> None:
        """Wait until there is room for one more pipeline."""
        self._room.acquire()

    def end(self, pipeline: str, how: str) -> None:
        """A pipeline ended alive."""
        with self._lock:
            self.ended[pipeline] = how
        self._leave()

    def _leave(self) -> None:
        self._room.release()
        self._over.release()

    def wait(self) -> None:
        """Return when every pipeline stands still or has ended."""
        for _ in self._wanted:
            self._over.acquire()


def _live(life: Callable[[str], object], pipeline: str, deaths: Deaths) -> None:
    try:
        how = str(life(pipeline))
    except Exception as error:  # noqa: BLE001  # the report must say it
        how = repr(error)
    deaths.end(pipeline, how)


def main(root: str, url: str, cases: str, report: str, does: str) -> NoReturn:
    """Never returns."""
    runs = Runs(Path(root), open_session(SparkSettings(url=url), "victim")).__enter__()
    wanted: dict[str, str] = json.loads(Path(cases).read_text())
    deaths = Deaths(wanted)
    life = runs.replay if does == "replay" else runs.to_the_end
    kill_points.hook = deaths
    for pipeline in wanted:
        deaths.enter()
        threading.Thread(target=_live, args=(life, pipeline, deaths), daemon=True).start()
    deaths.wait()
    Path(report).write_text(json.dumps({"dead": sorted(deaths.dead), "ended": deaths.ended}))
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


if __name__ == "__main__":
    main(*sys.argv[1:])
