"""The source distribution and wheel of this checkout, beside a project that has packages named like three of ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lab.modules import ROOT, TOPS

pytestmark = pytest.mark.slow

PYTHON = (sys.executable, "-m")


def _run(*command: object, cwd: Path, path: tuple[Path, ...] = ()) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "CONDUIT_SPARK_URL": "local[1]"}
    ran = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel installs, found before the checkout. It is made of the source distribution."""
    root = tmp_path_factory.mktemp("wheel")
    for top in TOPS:
        shutil.copytree(ROOT / top, root / "source" / top, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root / "source" / name)
    options = ("--quiet", "--no-deps", "--disable-pip-version-check")
    build = f"import setuptools.build_meta as backend; backend.build_sdist({str(root)!r})"
    _run(sys.executable, "-c", build, cwd=root / "source")
    [sdist] = root.glob("*.tar.gz")
    _run(*PYTHON, "pip", "wheel", *options, "--no-build-isolation", "-w", root, sdist, cwd=root)
    [wheel] = root.glob("*.whl")
    _run(*PYTHON, "pip", "install", *options, "--target", root / "site", wheel, cwd=root)
    return root / "site"


@pytest.fixture(scope="module")
def project(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("theirs") / "demo"
    _run(*PYTHON, "conduit_dagster.cli.main", "init", folder.name, cwd=folder.parent, path=(installed,))
    for name in TOPS[1:]:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("WHOSE = 'theirs'\n")
    return folder


def test_it_installs_one_package(installed: Path) -> None:
    found = sorted(one.name for one in installed.iterdir() if one.suffix != ".dist-info" and one.name != "bin")
    assert found == ["conduit_dagster"]


def test_the_command_line_runs_beside_packages_of_these_names(installed: Path, project: Path) -> None:
    path, shown = (installed, project), "import conduit_dagster; print(conduit_dagster.__file__)"
    where = _run(sys.executable, "-c", shown, cwd=project, path=path)
    assert Path(where.strip()).is_relative_to(installed)
    _run(*PYTHON, "conduit_dagster.cli.main", "run", "--once", cwd=project, path=path)
    written = (project / "out" / "adults.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in written] == ["Ada Lovelace", "Alan Turing", "Grace Hopper"]


def test_dagster_loads_it_beside_packages_of_these_names(installed: Path, project: Path) -> None:
    (project / "theirs.py").write_text(
        "import assets, sensors, resources\n"
        "from pathlib import Path\n"
        "from conduit_dagster.config.project import Project\n"
        "from conduit_dagster.definitions import define\n"
        "assert {assets.WHOSE, sensors.WHOSE, resources.WHOSE} == {'theirs'}\n"
        "defs = define(Project.find(Path.cwd()))\n"
    )
    for module in ("theirs", "conduit_dagster.definitions"):
        dagster = Path(sys.executable).parent / "dagster"
        _run(dagster, "definitions", "validate", "-m", module, cwd=project, path=(installed, project))
