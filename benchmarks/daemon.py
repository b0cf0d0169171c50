"""Dagster's daemon and a code server, for a project in a separate folder, as in `dagster dev`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from conduit_dagster.processes import end, free_port, started_at

ROOT = Path(__file__).parents[1]


class Daemon:
    """Two processes and their children; their output goes to ``daemon.log`` in the project."""

    def __init__(self, root: Path, choose_port: Callable[[], int] = free_port) -> None:
        """``choose_port``: returns that of the code server, which binds it seconds later."""
        self._choose_port = choose_port
        self._root, self._home = root, root / "dagster"
        self._home.mkdir()
        (self._home / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text().replace(".conduit/", f"{root}/"))
        # like `dagster dev`: if two processes create one SQLite storage, both stamp it, which breaks it for good
        with self.storage():
            pass
        self._daemon: subprocess.Popen[bytes] | None = None
        self._code: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start both, with Dagster's defaults for Spark.

        The code server is separate: a daemon that has to start it itself starts a new one every minute.
        """
        if self._code is None:
            port = self._choose_port()
            server = f"grpc_server: {{host: localhost, port: {port}, location_name: conduit}}"
            (self._home / "workspace.yaml").write_text(f"load_from:\n  - {server}\n")
            self._code = self._run("dagster", "code-server", "start", "-m", "conduit_dagster.definitions", f"-p{port}")
        self._daemon = self._run("dagster-daemon", "run", "-w", str(self._home / "workspace.yaml"))

    def _run(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "DAGSTER_HOME": str(self._home), "PYTHONPATH": str(ROOT)}
        for name in [name for name in environment if name.startswith("CONDUIT_")]:
            del environment[name]
        with (self._root / "daemon.log").open("ab") as log:
            return subprocess.Popen(
                [str(Path(sys.executable).parent / program), *words],
                cwd=self._root,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Send kill -9 to the daemon itself: code server and runs survive."""
        assert self._daemon is not None
        os.kill(self._daemon.pid, signal.SIGKILL)
        self._daemon.wait()

    def stop(self) -> None:
        """Stop gracefully, or after a while by force: Dagster's code server sometimes does not end when asked."""
        for process in (self._daemon, self._code):
            if process is not None:
                end(process.pid, started_at(process.pid) or "", 20)
                process.wait()

    @property
    def said(self) -> str:
        """The end of its log."""
        return (self._root / "daemon.log").read_text()[-6000:]

    @contextmanager
    def storage(self) -> Iterator[dg.DagsterInstance]:
        """Yield Dagster's own storage."""
        with dg.DagsterInstance.from_config(str(self._home)) as instance:
            yield instance
