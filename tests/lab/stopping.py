"""Runs that are stopped in progress."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from conduit_dagster.engine.report import RunResult
from conduit_dagster.engine.stop import StopFlag
from lab.support import Lab
from lab.waiting import wait_until


def run_until(
    lab: Lab, condition: Callable[[], object], what: str, then: Callable[[StopFlag], object], **options: Any
) -> RunResult:
    """Run the lab's pipeline, call ``then`` once the condition holds, and return the result."""
    stop = StopFlag()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(lab.run, stop=stop, **options)
        try:
            wait_until(condition, what, 120, over=run.done, said=lambda: str(run.result(0)))
        except BaseException:
            stop.force()
            raise
        then(stop)
        return run.result(120)


def forced_stop_once(lab: Lab, condition: Callable[[], object], what: str) -> None:
    """Stop it by force once the condition holds: it must end at once, with the result of a forced stop."""
    result = run_until(lab, condition, what, StopFlag.force)
    assert result.error is not None
    assert (result.status, result.error.code) == ("degraded", "pipeline.forced_stop")
