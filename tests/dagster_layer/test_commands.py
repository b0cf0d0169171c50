"""The project works with Dagster's own commands, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from dagster_layer.project_folder import Folder

ROOT = Path(__file__).parents[2]
MODULE = ("-m", "conduit_dagster.definitions")

pytestmark = pytest.mark.slow


def _call(folder: Folder, *command: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / command[0]
    home = folder.root / "dagster"
    home.mkdir(exist_ok=True)
    (home / "dagster.yaml").touch()
    # each command is alone with its project: a server would only stay behind
    own = {"DAGSTER_HOME": str(home), "PYTHONPATH": str(ROOT), "DAGSTER_DISABLE_TELEMETRY": "1"}
    own["CONDUIT_SPARK_URL"] = "local[2]"
    return subprocess.run(
        [str(program), *command[1:]],
        cwd=cwd or folder.root,
        env={**os.environ, **own, **env},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def _delivered(folder: Folder) -> int:
    return len((folder.root / "out.jsonl").read_text().splitlines())


def test_dagster_job_execute(folder: Folder) -> None:
    folder.numbers()
    done = _call(folder, "dagster", "job", "execute", *MODULE, "-j", "numbers")
    assert done.returncode == 0, done.stderr
    assert _delivered(folder) == 40


def test_dagster_asset_materialize_drains_a_continuous_pipeline(folder: Folder) -> None:
    folder.numbers(trigger="continuous")
    done = _call(folder, "dagster", "asset", "materialize", *MODULE, "--select", "group:numbers")
    assert done.returncode == 0, done.stderr
    assert _delivered(folder) == 40


def test_dagster_definitions_validate_reads_the_workspace_file(folder: Folder) -> None:
    folder.numbers()
    command = ("dagster", "definitions", "validate", "-w", str(ROOT / "workspace.yaml"))
    done = _call(folder, *command)
    assert done.returncode == 0, done.stderr


def test_dg_check_defs_passes_with_a_broken_file_beside_a_sound_one(folder: Folder) -> None:
    """``dg`` wants to stand in the project of pyproject.toml; the pipelines are still ours to name."""
    folder.numbers()
    folder.write("torn.yaml", "version: '2.2'\npipelines: [\n")
    env = {"CONDUIT_PIPELINES": str(folder.root / "pipelines"), "CONDUIT_HOME": str(folder.root / ".conduit")}
    checked = _call(folder, "dg", "check", "defs", "--no-check-yaml", cwd=ROOT, **env)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    listed = _call(folder, "dg", "list", "defs", "--json", cwd=ROOT, **env)
    assert '"numbers/out"' in listed.stdout
    assert "torn.yaml" not in listed.stdout.partition("{")[0], "what is wrong goes to stderr"


def test_a_failed_job_says_what_to_do_and_shows_no_java(folder: Folder) -> None:
    folder.numbers()
    (folder.root / "in.jsonl").unlink()
    done = _call(folder, "dagster", "job", "execute", *MODULE, "-j", "numbers")
    assert done.returncode == 1
    assert "create it, or correct the setting path" in done.stderr
    assert "at org.apache" not in done.stderr


def test_the_example_pipelines_run_as_they_are(folder: Folder) -> None:
    for file in (ROOT / "pipelines").glob("*.yaml"):
        folder.write(file.name, file.read_text())
    done = _call(folder, "dagster", "job", "execute", *MODULE, "-j", "demo")
    assert done.returncode == 0, done.stderr
    lines = {path.name: len(path.read_text().splitlines()) for path in (folder.root / "demo").iterdir()}
    assert lines["all.jsonl"] > lines["large.jsonl"] > lines["dead_letters.jsonl"] > 0
