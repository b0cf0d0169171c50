"""Life cycle of the shared server: starting it on demand, finding it, checking its health, stopping it.

One local Spark Connect server per project, for its user only: bound to the loopback, with its token in a file that only
that user can read. PySpark has a similar server (``spark.local.connect.reuse``, experimental): one per user, identified
only by its pid, without a health check and never stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from conduit_dagster.processes import end, is_up, resident_bytes
from conduit_dagster.recovery.errors import TransientError, from_os_error
from conduit_dagster.spark.class_data import distrust_archive, make_archive_later
from conduit_dagster.spark.server_files import ServerFiles, SessionFile, SparkServer
from conduit_dagster.spark.server_launch import launch_plan, package_path, runtime
from conduit_dagster.spark.server_monitor import answered
from conduit_dagster.spark.spark_settings import SparkSettings
from conduit_dagster.warm.client import prepare

# it takes seconds on an idle machine, but minutes on one that is overloaded tenfold
_START_SECONDS = 300.0
_ANSWER_SECONDS = 30.0
_STOP_SECONDS = 10.0
_TICK = 0.1
_TRIES = 3
_PORT_TAKEN = ("BindException", "Address already in use")
_monitors: list[subprocess.Popen[bytes]] = []


def join_server(settings: SparkSettings, name: str) -> tuple[SparkServer, SessionFile]:
    """Return the project's server, started if necessary, and the session's lock file: release it with the session.

    If two processes call this at once, one starts the server. Raises ``TransientError``: ``spark.server_failed`` (it
    does not start), ``spark.unreachable`` (it runs but does not answer, and others use it), ``spark.server_busy``,
    ``spark.server_differs`` (others use one with a different Spark, Python or copy of this package), and that of a file
    which can't be written, as on a full disk.
    """
    files = ServerFiles(settings.home)
    with files.locked(_START_SECONDS * 2):
        try:
            server = _running(files) or _started(files, settings)
            if not server.is_monitored():
                server = _monitored(files, settings)
            return server, files.hold_session(name)
        except OSError as error:
            raise from_os_error(error, "the shared Spark server can't write its files") from error


def start_server(settings: SparkSettings) -> tuple[SparkServer, bool]:
    """Return the server and whether this call started it. Raises like :func:`join_server`."""
    files = ServerFiles(settings.home)
    before = files.read()
    server, mark = join_server(settings, "spark start")
    mark.release()
    return server, files.is_another(before)


def stop_server(home: Path) -> dict[str, Any] | None:
    """Stop the server, by force after ten seconds; return its facts, ``None`` if nothing was running.

    Pipelines with an open session on it fail with ``spark.session_lost``.
    """
    files = ServerFiles(home)
    with _locked_if_there(files):
        server = files.read()
        if server is None or not server.is_alive():
            files.forget()
            return None
        cut_off = files.sessions()
        # first, so that a client whose job fails now can find the reason
        files.forget(server)
        forced = end(server.pid, server.started, _STOP_SECONDS)
    return {"pid": server.pid, "forced": forced, "sessions": cut_off}


def stop_unused(home: Path, server: SparkServer) -> None:
    """Stop this server if it has no open session, and is still the project's. The caller has released its own.

    Raises ``TransientError`` (``spark.server_busy``): never without the lock, under which others join.
    """
    files = ServerFiles(home)
    with files.locked(_START_SECONDS):
        known = files.read()
        if known is not None and known.token == server.token and not files.sessions():
            files.forget(known)
            end(known.pid, known.started, _STOP_SECONDS)


def server_status(home: Path) -> dict[str, Any]:
    """Return the server's status; wait at most ten seconds for its answer. Starts and changes nothing."""
    files = ServerFiles(home)
    server = files.read()
    if server is None or not server.is_alive():
        return {"running": False, "log": str(files.log) if files.has_log else None}
    version = answered(server, 10) if is_up(server.pid, server.port) else None
    return {
        "running": True,
        "answers": version is not None,
        "url": server.url,
        "pid": server.pid,
        "since": server.since,
        "memory_bytes": resident_bytes(server.pid),
        "sessions": files.sessions(),
        "version": version or server.spark,
        "python": server.python,
        "log": str(files.log),
    }


@contextmanager
def _locked_if_there(files: ServerFiles) -> Generator[None]:
    """Lock the folder if it exists; continue without the lock if a start hangs, so that a stop can interrupt it."""
    if not files.folder.is_dir():
        yield
        return
    try:
        with files.locked(_STOP_SECONDS):
            yield
    except TransientError as error:
        if error.code != "spark.server_busy":
            raise
        yield


def _running(files: ServerFiles) -> SparkServer | None:
    """Return the running server if it can be used; stop an unusable one that has no sessions.

    Raises ``TransientError`` for an unusable server with open sessions.
    """
    server = files.read()
    if server is None or not server.is_alive():
        return None
    users = files.sessions()
    about = runtime()
    if any(getattr(server, name) != value for name, value in about.items()):
        if users:
            raise _differs(server, about)
    elif _came_up(server) and answered(server, _ANSWER_SECONDS):
        return server
    elif users:
        raise _silent(server)
    end(server.pid, server.started, _STOP_SECONDS)
    return None


def _came_up(server: SparkServer) -> bool:
    """Wait for the server to listen, since the process that started it may have been killed; return whether it does."""
    # a clock that was set back since must not stretch the wait
    until = time.monotonic() + min(_START_SECONDS, server.since + _START_SECONDS - time.time())
    while server.is_alive() and time.monotonic() < until and not is_up(server.pid, server.port):
        time.sleep(_TICK)
    return is_up(server.pid, server.port)


def _started(files: ServerFiles, settings: SparkSettings) -> SparkServer:
    for left in reversed(range(_TRIES)):
        if server := _attempt(files, settings):
            make_archive_later()
            return server
        said = _tail(files.log)
        # the port was free a few seconds ago; any other failure may be the archive's fault
        if not left or (not any(sign in said for sign in _PORT_TAKEN) and not distrust_archive()):
            break
    raise _failed(files)


def _attempt(files: ServerFiles, settings: SparkSettings) -> SparkServer | None:
    """Start a server and wait until it answers; return ``None`` if it ended or hung."""
    if files.log.exists():
        files.log.replace(files.log.with_suffix(".log.1"))
    plan = launch_plan(files, settings, archive=True)
    monitor = _spawn_monitor(files, {**plan, "adopt": False, "idle": settings.idle})
    try:
        _meanwhile(plan["env"])
        server = _wait(files, plan["server"]["token"], monitor)
    finally:
        # it holds secrets, and the server has read it
        files.conf.unlink(missing_ok=True)
    if server is None:
        return None
    if server.is_alive() and answered(server, _ANSWER_SECONDS):
        return server
    end(server.pid, server.started, _STOP_SECONDS)
    return None


def _meanwhile(environment: dict[str, str]) -> None:
    """While the JVM starts, do other work that the first job needs: imports of its workers, and of this client."""
    prepare("workers", environment, environment["PYSPARK_PYTHON"])
    import_module("pyspark.sql.connect.session")


def _wait(files: ServerFiles, token: str, monitor: subprocess.Popen[bytes]) -> SparkServer | None:
    """Return the server once it listens, or its last known record if it ended. Stop one that takes too long."""
    deadline = time.monotonic() + _START_SECONDS
    found = None
    while monitor.poll() is None:
        server = files.read()
        if server is not None and server.token == token:
            found = server
            if is_up(server.pid, server.port):
                break
        if time.monotonic() >= deadline:
            raise _slow(files, found)
        time.sleep(_TICK)
    _check(monitor, files)
    return found


def _check(monitor: subprocess.Popen[bytes], files: ServerFiles) -> None:
    """Raise the error of a monitor that has ended because it could not write the server's record."""
    ended = monitor.poll()
    # 1 and 2 are Python's own, signals are negative
    if ended is not None and ended > 2:
        raise OSError(ended, os.strerror(ended), str(files.record))


def _monitored(files: ServerFiles, settings: SparkSettings) -> SparkServer:
    """Start a new monitor for a server whose monitor was killed."""
    monitor = _spawn_monitor(files, {"adopt": True, "idle": settings.idle})
    while monitor.poll() is None:
        server = files.read()
        if server is not None and server.is_monitored():
            return server
        time.sleep(_TICK)
    _check(monitor, files)
    raise _failed(files)


def _spawn_monitor(files: ServerFiles, plan: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a monitor. It and the server inherit no stream and no lock: readers of our output don't wait for them."""
    command = [sys.executable, "-m", "conduit_dagster.spark.server_monitor"]
    with files.log.open("ab") as log:
        monitor = subprocess.Popen(
            command, cwd=files.folder, env={**os.environ, "PYTHONPATH": package_path()}, start_new_session=True,
            stdin=subprocess.PIPE, stdout=log, stderr=log,
        )  # fmt: skip
    assert monitor.stdin is not None
    with monitor.stdin as stdin:
        stdin.write(json.dumps({**plan, "home": str(files.home.absolute())}).encode())
    _monitors[:] = [*(one for one in _monitors if one.poll() is None), monitor]
    return monitor


def _tail(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")[-20_000:]
    except OSError:
        return ""


def _failed(files: ServerFiles) -> TransientError:
    lines = [line.strip() for line in _tail(files.log).splitlines()]
    causes = [line for line in lines if line.startswith(("Exception in thread", "Caused by:", "Error:", "java.lang."))]
    # some ends of Spark are no exception: only what it logged tells them
    causes = causes or [line.partition(" ERROR ")[2] for line in lines if " ERROR " in line]
    why = f": {causes[-1]}" if causes else ""
    return TransientError(
        f"the shared Spark server does not start{why}",
        code="spark.server_failed",
        place=str(files.log),
        fix="read its log; check spark.conf in conduit.yaml, spark-defaults.conf, and Java with conduit-dagster doctor",
    )


def _slow(files: ServerFiles, server: SparkServer | None) -> TransientError:
    if server is not None:
        end(server.pid, server.started, _STOP_SECONDS)
    return TransientError(
        f"the shared Spark server was not up after {_START_SECONDS:.0f} s",
        code="spark.server_failed",
        place=str(files.log),
        fix="read its log; start it again when the machine is less busy: conduit-dagster spark start",
    )


def _silent(server: SparkServer) -> TransientError:
    return TransientError(
        f"the shared Spark server {server.url} (pid {server.pid}) runs, but did not answer for"
        f" {_ANSWER_SECONDS:.0f} s, and other pipelines use it",
        code="spark.unreachable",
        fix="if `conduit-dagster spark status` finds it silent too, `conduit-dagster spark stop` ends it",
    )


def _differs(server: SparkServer, about: dict[str, str]) -> TransientError:
    return TransientError(
        f"the shared Spark server runs Spark {server.spark} for {server.python} with conduit-dagster from"
        f" {server.package or 'an older version'}, this is {about['spark']} for {about['python']} with"
        f" {about['package']}, and other pipelines use it",
        code="spark.server_differs",
        fix="stop those pipelines, or run `conduit-dagster spark stop`: the next run starts a server of its own kind",
    )
