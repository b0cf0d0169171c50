"""A run that is kept begins once an operator's command has given the lease back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lab.recovery_lab import ALL, build, ids, in_background, keep
from lab.support import Lab
from lab.waiting import wait_until
from structlog.testing import capture_logs

from conduit_dagster.engine.operate.pipeline_lock import take_lease
from conduit_dagster.engine.report import RunResult
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.engine.stop import StopFlag


@contextmanager
def waiting(lab: Lab, flag: StopFlag) -> Iterator[tuple[threading.Thread, list[RunResult]]]:
    """Yield a run that has found a command at work; the command ends with the block."""
    build(lab)
    with lab.store() as database, capture_logs() as logged:
        lease = take_lease("p", database, RunOptions.of(lab.catalogue().project))
        try:
            run = in_background(lambda: keep(lab, flag=flag))
            wait_until(lambda: "waiting for a command" in [row["event"] for row in logged], "it waits")
            yield run
        finally:
            lease.release()


def test_it_begins_once_the_command_has_ended(lab: Lab) -> None:
    with waiting(lab, StopFlag()) as (thread, results):
        assert not results
    thread.join()
    assert (results[0].status, results[0].error, ids(lab)) == ("stopped", None, ALL)


def test_it_may_be_stopped_before(lab: Lab) -> None:
    flag = StopFlag()
    with waiting(lab, flag) as (thread, results):
        flag.request("user")
        thread.join()
    assert (results[0].status, results[0].reason, results[0].error) == ("stopped", "user", None)
    assert ids(lab) == []
