"""Dagster's daemon with a code server, for a project in a folder of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

ROOT = Path(__file__).parents[1]


class Daemon:
    """One process and what it starts; what it says goes to ``daemon.log`` in the project."""

    def __init__(self, root: Path) -> None:
        self._root, self._home = root, root / "dagster"
        self._home.mkdir()
        (self._home / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text().replace(".conduit/", f"{root}/"))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Daemon and code server, in a process group of their own, with Dagster's defaults for Spark."""
        program = Path(sys.executable).parent / "dagster-daemon"
        environment = {**os.environ, "DAGSTER_HOME": str(self._home), "PYTHONPATH": str(ROOT)}
        for name in [name for name in environment if name.startswith("CONDUIT_")]:
            del environment[name]
        with (self._root / "daemon.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(program), "run", "-m", "conduit_dagster.definitions"],
                cwd=self._root,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """kill -9 of the daemon itself; runs are processes of their own."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """In good order."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(60)

    @property
    def said(self) -> str:
        """The end of its log."""
        return (self._root / "daemon.log").read_text()[-6000:]

    @contextmanager
    def storage(self) -> Iterator[dg.DagsterInstance]:
        """Dagster's own storage."""
        with dg.DagsterInstance.from_config(str(self._home)) as instance:
            yield instance
