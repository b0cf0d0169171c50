"""Dagster's own commands, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dagster_layer.project_folder import Folder

ROOT = Path(__file__).parents[2]
MODULE = ("-m", "conduit_dagster.definitions")
"""Options that name the project's definitions."""


def call(folder: Folder, *command: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Dagster in the folder; return its output."""
    program = Path(sys.executable).parent / command[0]
    home = folder.root / "dagster"
    home.mkdir(exist_ok=True)
    (home / "dagster.yaml").touch()
    # each command has a project of its own: a server would only be left behind
    own = {"DAGSTER_HOME": str(home), "PYTHONPATH": str(ROOT), "DAGSTER_DISABLE_TELEMETRY": "1"}
    return subprocess.run(
        [str(program), *command[1:]],
        cwd=cwd or folder.root,
        env={"CONDUIT_SPARK_URL": "local[2]", **os.environ, **own, **env},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
