"""Starting the command line, and commands that can't be parsed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("pyspark", "dagster", "pandas", "pyarrow")
PROBE = """
import sys
from conduit_dagster.cli.main import main
code = main(sys.argv[1:])
print([name for name in {heavy!r} if name in sys.modules], code, file=sys.stderr)
"""


@pytest.mark.parametrize("words", [["--help"], ["validate"], ["lint", "--json"], ["pipelines", "list"]])
def test_starting_imports_neither_spark_nor_dagster(project: Path, words: list[str]) -> None:
    probe = [sys.executable, "-c", PROBE.format(heavy=HEAVY), *words]
    done = subprocess.run(probe, cwd=project, capture_output=True, text=True, timeout=100, check=True)
    assert done.stderr.splitlines()[-1] == "[] 0"


def test_the_script_of_the_distribution_is_this_command(run) -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="conduit-dagster")
    assert script.value == "conduit_dagster.cli.main:main"
    assert run("--version").out.startswith("conduit-dagster ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nonsense"], "No such command"),
        (["validate", "--nonsense"], "No such option"),
        (["processors", "describe"], "Missing argument"),
        (["-C", "nowhere", "validate"], "nowhere"),
    ],
)
def test_a_command_that_cannot_be_read_is_one_clear_error(run, words: list[str], told: str) -> None:
    ran = run(*words)
    assert ran.code == 2
    assert told in ran.err
    assert "Traceback" not in ran.err
    assert not ran.out


@pytest.mark.parametrize(
    ("words", "helps"),
    [
        (["pipelin", "list"], "conduit-dagster --help"),
        (["pipelines", "lst"], "conduit-dagster pipelines --help"),
        (["pipelines", "list", "--nonsense"], "conduit-dagster pipelines list --help"),
    ],
)
def test_the_help_named_for_it_exists(run, words: list[str], helps: str) -> None:
    assert f"fix:    {helps}\n" in run(*words).err
    assert run(*helps.split()[1:]).code == 0


def test_a_command_that_cannot_be_read_has_an_envelope_too(run) -> None:
    ran = run("validate", "--nonsense", "--json")
    assert ran.envelope["error"]["code"] == "usage.command"
    assert ran.code == 2


def test_project_option_works_as_if_started_there(run, project: Path, tmp_path_factory, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    ran = run("-C", str(project), "validate", "--json")
    assert [one["id"] for one in ran.envelope["result"]["pipelines"]] == ["orders"]


def test_what_a_plugin_prints_stays_out_of_the_envelope(shell, project: Path) -> None:
    (project / "plugins").mkdir()
    noise = "import os\nprint('noise')\nos.write(1, b'more noise')\n"
    (project / "plugins" / "noisy.py").write_text(noise)
    ran = shell.run("validate", "--json")
    assert ran.envelope["ok"]
    assert "noise" in ran.err


def test_a_reader_that_went_away_is_no_stack_trace(project: Path, shell) -> None:
    process = shell.spawn("processors", "list")
    process.stdout.close()
    code = process.wait(100)
    assert code == 1
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
