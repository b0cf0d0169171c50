"""The source distribution and wheel of this checkout: beside a project that has packages named like three of ours, and
in an environment that has none of the extras.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab.bare_environment import bare_environment
from lab.choice import in_matrix
from lab.modules import ROOT, TOPS

pytestmark = pytest.mark.slow

PYTHON = (sys.executable, "-m")
OPTIONS = ("--quiet", "--no-deps", "--disable-pip-version-check")
NAMES = ["Ada Lovelace", "Alan Turing", "Grace Hopper"]
NEEDING = """
version: "2.2"
pipelines:
  - id: needing
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: ./data/people.jsonl}}
      - {id: rows, type: destination, plugin: postgres, settings: {url: "postgresql://u@h/d", table: t}}
      - {id: table, type: destination, plugin: "builtin:delta", settings: {path: ./table}}
"""


def _ran(
    *command: object, cwd: Path, path: tuple[Path, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    own = {"PYTHONPATH": os.pathsep.join(map(str, path)), "CONDUIT_SPARK_URL": "local[1]", **variables}
    words, env = [str(word) for word in command], {**os.environ, **own}
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False)


def _run(*command: object, cwd: Path, path: tuple[Path, ...] = ()) -> str:
    ran = _ran(*command, cwd=cwd, path=path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution."""
    root = tmp_path_factory.mktemp("wheel")
    for top in TOPS:
        shutil.copytree(ROOT / top, root / "source" / top, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root / "source" / name)
    build = f"import setuptools.build_meta as backend; backend.build_sdist({str(root)!r})"
    _run(sys.executable, "-c", build, cwd=root / "source")
    [sdist] = root.glob("*.tar.gz")
    _run(*PYTHON, "pip", "wheel", *OPTIONS, "--no-build-isolation", "-w", root, sdist, cwd=root)
    [made] = root.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """A folder with the wheel's content, found before the checkout."""
    site = wheel.parent / "site"
    _run(*PYTHON, "pip", "install", *OPTIONS, "--target", site, wheel, cwd=wheel.parent)
    return site


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
    assert [json.loads(line)["name"] for line in written] == NAMES


@in_matrix
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


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, and without its extras."""
    return bare_environment(tmp_path_factory.mktemp("bare") / "env", wheel)


@pytest.fixture(scope="module")
def simple(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which only ``init`` and ``run --once`` were typed."""
    folder = tmp_path_factory.mktemp("simple") / "demo"
    _run(bare / "conduit-dagster", "init", folder.name, cwd=folder.parent)
    _run(bare / "conduit-dagster", "run", "--once", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def needing(simple: Path) -> Path:
    """The project with one more pipeline, whose destinations need extras."""
    (simple / "pipelines" / "needing.yaml").write_text(NEEDING)
    return simple


def _refused(program: Path, *words: str, cwd: Path, **variables: str) -> tuple[int, dict[str, Any]]:
    ran = _ran(program, *words, "--json", cwd=cwd, **variables)
    assert "Traceback" not in ran.stdout + ran.stderr
    return ran.returncode, json.loads(ran.stdout)


def test_the_base_runs_a_pipeline_without_any_extra(bare: Path, simple: Path) -> None:
    packages = (
        "psycopg", "confluent_kafka", "deltalake", "_quickjs", "fastavro", "openlineage", "dagster_webserver",
        "dagster_dg_cli",
    )  # fmt: skip
    probe = f"from importlib.util import find_spec; print([name for name in {packages} if find_spec(name)])"
    assert _run(bare / "python", "-c", probe, cwd=simple).strip() == "[]"
    written = (simple / "out" / "adults.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in written] == NAMES


@pytest.mark.parametrize("words", [("validate",), ("run", "--once")])
def test_a_destination_without_its_extra_is_one_finding(bare: Path, needing: Path, words: tuple[str, ...]) -> None:
    code, said = _refused(bare / "conduit-dagster", *words, cwd=needing)
    found = [(one["code"], one["line"], one["fix"]) for one in said["result"]["findings"]]
    assert code == 2
    assert found == [
        ("plugin.not_installed", 7, "pip install 'conduit-dagster[postgres]'"),
        ("plugin.not_installed", 8, "pip install 'conduit-dagster[delta]'"),
    ]


def test_a_state_store_in_postgres_without_its_extra_is_one_error(bare: Path, simple: Path) -> None:
    url = "postgresql://u:p@127.0.0.1:1/d"
    code, said = _refused(bare / "conduit-dagster", "pipelines", "list", cwd=simple, CONDUIT_STATE_URL=url)
    assert (code, said["error"]["code"]) == (3, "state.not_installed")
    assert said["error"]["fix"] == "pip install 'conduit-dagster[postgres]'"


def test_dagster_loads_it_without_its_web_server(bare: Path, needing: Path) -> None:
    shown = (
        "from conduit_dagster import load_pipelines\n"
        "keys = [spec.key.to_user_string() for spec in load_pipelines('.').resolve_all_asset_specs()]\n"
        "print({'first/people', 'needing/broken/file'} <= set(keys), sorted(keys))"
    )
    ran = _ran(bare / "python", "-c", shown, cwd=needing)
    assert ran.stdout.startswith("True"), ran.stdout + ran.stderr
    assert ran.stderr.count("plugin.not_installed") == 2
    assert "Traceback" not in ran.stderr
    _run(bare / "python", "-m", "dagster", "definitions", "validate", "-m", "conduit_dagster.definitions", cwd=needing)
