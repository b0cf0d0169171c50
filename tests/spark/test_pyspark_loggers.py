"""PySpark's loggers, got by many threads at once."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator

import pytest

from conduit_dagster.spark.session import guard_loggers, hush_errors


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads take turns after a microsecond; and other tests have their class of loggers, whatever happens."""
    interval, known = sys.getswitchinterval(), logging.getLoggerClass()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
    logging.setLoggerClass(known)


@pytest.mark.usefixtures("quick_switches")
def test_pipelines_that_open_sessions_at_once_leave_the_class_of_loggers_alone() -> None:
    known = logging.getLoggerClass()
    names: list[str] = []
    guard_loggers()

    def others() -> None:
        for i in range(2000):
            names.append(f"of another thread {threading.get_ident()} {i}")
            logging.getLogger(names[-1])

    def ours() -> None:
        for _ in range(100):
            hush_errors()

    threads = [threading.Thread(target=target) for target in [others, *[ours] * 8]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert logging.getLoggerClass() is known
    assert {type(logging.getLogger(name)) for name in names} == {known}
