"""The project works with Dagster's own commands, each in a process of its own."""

from __future__ import annotations

import pytest
from dagster_layer.commands import MODULE, ROOT, call
from dagster_layer.project_folder import Folder

pytestmark = pytest.mark.slow


def _delivered(folder: Folder) -> int:
    return len((folder.root / "out.jsonl").read_text().splitlines())


def test_dagster_job_execute(folder: Folder) -> None:
    folder.numbers()
    done = call(folder, "dagster", "job", "execute", *MODULE, "-j", "numbers")
    assert done.returncode == 0, done.stderr
    assert _delivered(folder) == 40


@pytest.mark.usefixtures("connected")
def test_dagster_asset_materialize_drains_a_continuous_pipeline(folder: Folder) -> None:
    folder.numbers(trigger="continuous")
    done = call(folder, "dagster", "asset", "materialize", *MODULE, "--select", "group:numbers")
    assert done.returncode == 0, done.stderr
    assert _delivered(folder) == 40


def test_dagster_definitions_validate_reads_the_workspace_file(folder: Folder) -> None:
    folder.numbers()
    command = ("dagster", "definitions", "validate", "-w", str(ROOT / "workspace.yaml"))
    done = call(folder, *command)
    assert done.returncode == 0, done.stderr


def test_dg_check_defs_passes_with_a_broken_file_beside_a_sound_one(folder: Folder) -> None:
    """``dg`` needs to run in the project of pyproject.toml; the pipelines are still ours to name."""
    folder.numbers()
    folder.write("torn.yaml", "version: '2.2'\npipelines: [\n")
    env = {"CONDUIT_PIPELINES": str(folder.root / "pipelines"), "CONDUIT_HOME": str(folder.root / ".conduit")}
    checked = call(folder, "dg", "check", "defs", "--no-check-yaml", cwd=ROOT, **env)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    listed = call(folder, "dg", "list", "defs", "--json", cwd=ROOT, **env)
    assert '"numbers/out"' in listed.stdout
    assert "torn.yaml" not in listed.stdout.partition("{")[0], "what is wrong goes to stderr"


@pytest.mark.usefixtures("connected")
def test_a_failed_job_says_what_to_do_and_shows_no_java(folder: Folder) -> None:
    folder.numbers()
    (folder.root / "in.jsonl").unlink()
    done = call(folder, "dagster", "job", "execute", *MODULE, "-j", "numbers")
    assert done.returncode == 1
    assert "create it, or correct the setting path" in done.stderr
    assert "at org.apache" not in done.stderr


@pytest.mark.usefixtures("connected")
def test_the_example_pipelines_run_as_they_are(folder: Folder) -> None:
    for file in (ROOT / "pipelines").glob("*.yaml"):
        folder.write(file.name, file.read_text())
    done = call(folder, "dagster", "job", "execute", *MODULE, "-j", "demo")
    assert done.returncode == 0, done.stderr
    lines = {path.name: len(path.read_text().splitlines()) for path in (folder.root / "demo").iterdir()}
    assert lines["all.jsonl"] > lines["large.jsonl"] > lines["dead_letters.jsonl"] > 0
