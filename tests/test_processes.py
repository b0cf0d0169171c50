"""Identity and life of processes."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import get_context

import pytest

from conduit_dagster.assets.stopping import Signals
from conduit_dagster.cli.running import CommandSignals, handled
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.processes import identity, is_dead, is_readable, is_running, wait_for_end
from conduit_dagster.processors.common.modules import module_of


def test_this_process_runs() -> None:
    myself = identity(os.getpid())
    assert is_running(myself)
    assert not is_dead(myself)


def test_a_later_process_with_the_same_id_is_another_one() -> None:
    earlier = {**identity(os.getpid()), "started": "1"}
    assert is_dead(earlier)
    assert not is_running(earlier)


def test_of_another_machine_or_boot_nothing_is_certain() -> None:
    for name in ("boot", "namespace"):
        elsewhere = {**identity(os.getpid()), name: "another one"}
        assert not is_dead({**elsewhere, "started": "1"})
        assert not is_running(elsewhere)


def test_the_end_of_a_process_is_awaited() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    who, dead_after = identity(process.pid), list[bool]()
    began = threading.Event()

    def wait() -> None:
        began.set()
        wait_for_end(who)
        # a process that ends too early finds it alive
        dead_after.append(is_dead(who))

    waiter = threading.Thread(target=wait)
    waiter.start()
    began.wait()
    process.communicate(b"\n")
    waiter.join(120)
    assert dead_after == [True]
    wait_for_end(who)  # at once


def test_a_descriptor_of_any_number_is_waited_for() -> None:
    """``select`` refuses those above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    reads, writes = os.pipe()
    high = fcntl.fcntl(reads, fcntl.F_DUPFD, 1_500)
    try:
        assert not is_readable(high, 0)
        os.write(writes, b"x")
        assert is_readable(high)
    finally:
        for one in (reads, writes, high):
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def _command() -> Iterator[None]:
    with handled(CommandSignals(StopFlag(), str)):
        yield


@pytest.mark.parametrize("catching", [Signals, _command])
def test_what_a_plugin_forks_in_a_run_ends_by_sigterm(catching: type[AbstractContextManager[object]]) -> None:
    """A pool of ``multiprocessing`` in ``latest()`` waited for its processes without end."""
    with catching():
        fork = get_context("fork").Process(target=time.sleep, args=(30,))
        fork.start()
        fork.terminate()
        fork.join(5)
        code = fork.exitcode
        fork.kill()
    assert code == -15


def test_what_a_plugin_forks_can_be_given_its_functions() -> None:
    module = module_of("conduit_plugins", "own", "def double(number):\n    return 2 * number\n", "own.py")
    with get_context("fork").Pool(1) as pool:
        assert pool.map(module.double, [1, 2]) == [2, 4]
