"""One round: owners are frozen, others take over, finish and continue; then the frozen ones are thawed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.frozen.frozen_cases import Case, FrozenProject, cases, flaw

from conduit_dagster.engine.report import RunResult

VICTIM = Path(__file__).with_name("frozen_victim.py")
_LEASE = 0.5
_AT_ONCE = 3


@dataclass(frozen=True)
class Ending:
    """The outcome of one case."""

    case: Case
    reached: bool
    taken: RunResult
    """The run that took over."""
    grown: RunResult
    """The one after it, with more input; the old owner still stood still."""
    flaw_before: str
    """What was wrong then."""
    thawed: dict[str, Any]
    """How the old owner's run ended."""
    last: RunResult
    """One more, after all of that."""
    flaw: str
    """What was wrong in the end."""


def require_unchanged(ending: Ending, lost: Collection[str]) -> None:
    """The new owners had no error and all is there once, before and after the old one went on.

    ``lost``: what the old one may say, which finds out that it is none any more.
    """
    assert ending.reached
    results = (ending.taken, ending.grown, ending.last)
    if ending.case.is_cut:
        for result in results:
            assert result.error is not None and result.error.code == "nacks.threshold_exceeded"
    else:
        errors = [result.error for result in results]
        assert errors == [None, None, None], errors
        assert ending.last.progress.read == 0
    assert ending.flaw_before == ""
    assert ending.flaw == ""
    error = ending.thawed["error"]
    assert error is None or error["code"] in lost, error


class Victim:
    """The process that is stopped."""

    def __init__(self, file: Path, server: Any) -> None:
        self._file = file
        with file.with_suffix(".log").open("wb") as log:
            self._process = server.start(VICTIM, file, server.url, stdout=log, stderr=log)

    def wait_stopped(self) -> list[str]:
        """Wait until it has stopped itself; return the pipelines that are at their points."""
        found = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert found is not None and found.si_code == os.CLD_STOPPED, self._said()
        assert self._state() == "T"
        return json.loads(self._file.with_suffix(".reached").read_text())

    def _state(self) -> str:
        return Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def go_on(self) -> dict[str, Any]:
        """Continue it, and wait for its end; return how its runs ended. It must not hang."""
        self._process.send_signal(signal.SIGCONT)
        assert self._process.wait(200) == 0, self._said()
        return json.loads(self._file.with_suffix(".ended").read_text())

    def end(self) -> None:
        """Also if a test has failed."""
        self._process.kill()
        self._process.wait(90)

    def _said(self) -> str:
        return self._file.with_suffix(".log").read_text()[-3000:]


def play(kind: str, strategy: str, folder: Path, spark: Any, server: Any, database: str) -> dict[str, Ending]:
    """All points of one kind of pipeline; return the outcome by name of the case."""
    projects = [FrozenProject(case, folder / case.name, spark, database) for case in cases(kind, strategy)]
    for project in projects:
        project.set_up()
    file = folder / "cases.json"
    file.write_text(json.dumps([_told(project) for project in projects]))
    victim = Victim(file, server)
    try:
        reached = victim.wait_stopped()
        taken = _all(projects, lambda project: project.take(project.case.name, _LEASE))
        for project in projects:
            project.grow()
        grown = _all(projects, lambda project: project.take(project.case.name, _LEASE))
        before = _all(projects, flaw)
        thawed = victim.go_on()
    finally:
        victim.end()
    last = _all(projects, lambda project: project.take(project.case.name, _LEASE))
    after = _all(projects, flaw)
    return {
        p.case.name: Ending(
            p.case, p.case.name in reached, taken[i], grown[i], before[i], thawed[p.case.name], last[i], after[i]
        )
        for i, p in enumerate(projects)
    }


def _told(project: FrozenProject) -> dict[str, Any]:
    case = project.case
    return {"root": str(project.root), "pipeline": case.name, "point": case.point, "passage": case.passage}


def _all(projects: list[FrozenProject], act: Callable[[FrozenProject], Any]) -> list[Any]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(act, projects))
