"""Processes by id and start time: an id alone may have been reused.

The start time is the kernel's own, in ticks since boot: psutil turns it into a time of day, which moves with the clock.
psutil is imported at its first use. A file lock (:func:`try_lock`) ends with its process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

_PROC = Path("/proc")
_TICK = 0.05
_LONGEST_WAIT = 3600.0
"""Seconds. ``poll`` takes no more than 24 days."""


def started_at(pid: int) -> str | None:
    """Return the start time, which distinguishes reuses of a process id; ``None`` if it has ended (a zombie has)."""
    if not (_PROC / "self" / "stat").exists():
        return _asked(pid)
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # the name in parentheses may itself contain blanks and parentheses
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _asked(pid: int) -> str | None:
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    state, _, start = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().partition(" ")
    return start.strip() if state and not state.startswith("Z") else None


def is_alive(pid: int, started: str) -> bool:
    """Return whether exactly this process is still running."""
    return started_at(pid) == started


def identity(pid: int) -> dict[str, Any]:
    """Return a JSON-safe identity of a local process, by which other local processes can check whether it is alive."""
    return {
        "host": socket.gethostname(),
        "boot": _read("/proc/sys/kernel/random/boot_id"),
        "namespace": _target(_PROC / "self" / "ns" / "pid"),
        "pid": pid,
        "started": started_at(pid),
    }


def is_running(process: dict[str, Any]) -> bool:
    """Return True only if the process is certainly running: its id, on this machine and boot, still refers to it."""
    return _is_here(process) and is_alive(int(process["pid"]), process["started"])


def is_dead(process: dict[str, Any]) -> bool:
    """Return True only if the process has certainly ended: it ran here, since this boot, and no longer exists."""
    return _is_here(process) and not is_alive(int(process["pid"]), process["started"])


def is_readable(descriptor: int, seconds: float | None = None) -> bool:
    """Wait until a descriptor can be read, but no longer than ``seconds`` or an hour; return whether it can.

    It may have any number: ``select`` takes none above 1,023, which a process with many files and connections reaches.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(min(_LONGEST_WAIT if seconds is None else seconds, _LONGEST_WAIT) * 1000))


def wait_for_end(process: dict[str, Any]) -> None:
    """Wait for the end of any local process, not only of a child. Linux only."""
    try:
        watched = os.pidfd_open(int(process["pid"]))
    except ProcessLookupError:
        return
    try:
        # the id existed when it was opened; check afterwards that it still refers to this process
        while is_running(process) and not is_readable(watched):
            pass
    finally:
        os.close(watched)


def _is_here(process: dict[str, Any]) -> bool:
    here = identity(os.getpid())
    return all(here[name] and here[name] == process.get(name) for name in ("boot", "namespace"))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def free_port() -> int:
    """Return a loopback port that is currently free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_up(pid: int, port: int) -> bool:
    """Return whether this process listens on a loopback port."""
    import psutil

    try:
        held = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in held)


def _target(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""


def resident_bytes(pid: int) -> int:
    """Return the memory of a process and all its descendants, shared pages counted in each; 0 if it has ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0
    return sum(map(_resident, family))


def _resident(process: Any) -> int:
    import psutil

    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0


def end(pid: int, started: str, patience: float) -> bool:
    """End a process by SIGHUP, after ``patience`` seconds by SIGKILL; return whether it had to be killed.

    Spark's servers ignore SIGTERM (:data:`conduit_dagster.spark.java.STAYS`). The exit code stays with its parent:
    psutil's own wait would take a child's away from ``subprocess``.
    """
    if _ended(pid, started, signal.SIGHUP, patience):
        return False
    _ended(pid, started, signal.SIGKILL, patience)
    return True


def _ended(pid: int, started: str, how: signal.Signals, patience: float) -> bool:
    deadline = time.monotonic() + patience
    try:
        if is_alive(pid, started):
            os.kill(pid, how)
    except ProcessLookupError:
        return True
    while is_alive(pid, started) and time.monotonic() < deadline:
        time.sleep(_TICK)
    return not is_alive(pid, started)


def try_lock(file: IO[Any], *, shared: bool = False) -> bool:
    """Try to take the lock; return whether it is now held.

    It is held until the file is closed, including its last copy in a forked process.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_left_in_forks: set[Callable[..., Any]] = set()
_forking = threading.local()


def end_forks_as_usual(handler: Callable[..., Any]) -> None:
    """Let SIGTERM end what is forked from this process while this function or method handles it here.

    A fork inherits the handler. A pool of ``multiprocessing``, which ends its processes by SIGTERM, would then wait for
    them without end.
    """
    if not _left_in_forks:
        os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_leave_handler)
    _left_in_forks.add(handler)


def _hold_back() -> None:
    # one that comes before the fork has left the handler would be lost
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _leave_handler() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    if getattr(handler, "__func__", handler) in _left_in_forks:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_through()
