"""Identity and life of processes."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
import threading

from conduit_dagster.processes import identity, is_dead, is_readable, is_running, wait_for_end


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
