"""Extras: a part whose packages are missing says so, and nothing else is harmed.

Most run a process in which the packages can't be imported; ``test_wheel.py`` has an environment without them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from lab.modules import ROOT

from conduit_dagster.cli.main import main
from conduit_dagster.extras import EXTRAS, PLUGINS, install_command, is_installed

MODULES = (
    "fastavro", "deltalake", "_quickjs", "openlineage", "psycopg", "confluent_kafka", "s3fs", "dagster_webserver",
    "dagster_dg_cli",
)  # fmt: skip
BARE = f"import sys; sys.modules.update(dict.fromkeys({MODULES!r}))\n"
COMMAND = BARE + "from conduit_dagster.cli.main import main\nsys.exit(main(sys.argv[1:]))"
LOADED = """
import json
from conduit_dagster.builtin_plugins import DESTINATIONS, PROCESSORS, SOURCES
lacking = [(n, e.fix) for k in (SOURCES, DESTINATIONS, PROCESSORS) for n in k.names() if (e := k.not_installed(n, {}))]
print(json.dumps(lacking))
"""
TASK = """
from conduit_dagster.engine.compiled_pipeline import compile_program
from conduit_dagster.engine.program import ConnectorSpec, Program
from conduit_dagster.recovery.errors import FatalError
read, queue = (ConnectorSpec(name, "file", {"path": f"./{name}.jsonl"}) for name in ("in", "dead"))
for name in ("postgres", "nonsense"):
    program = Program("p", "/", [read], [], [ConnectorSpec("out", name, {})], queue, 1)
    try:
        compile_program(program)
    except FatalError as error:
        print(error.code, error.message)
"""
PIPELINE = """
version: "2.2"
pipelines:
  - id: orders
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: ./in.jsonl}}
      - id: out
        type: destination
        plugin: builtin:postgres
        settings: {url: "postgresql://u@h/d", table: t}
    processors:
      - {id: script, plugin: custom.javascript, settings: {script: "function process(record) { return record }"}}
    dead-letter-queue: {plugin: delta, settings: {path: ./dead}}
"""
OTHER = """
version: "2.2"
pipelines:
  - id: other
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: ./in.jsonl}}
      - {id: out, type: destination, plugin: file, settings: {path: ./out.jsonl}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conduit.yaml").write_text("log: {level: info}\n")
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "orders.yaml").write_text(PIPELINE)
    return tmp_path


def _python(code: str, *words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100, check=False)


def _said(project: Path, *words: str) -> tuple[int, dict[str, Any]]:
    ran = _python(COMMAND, *words, "--json", cwd=project)
    assert "Traceback" not in ran.stdout + ran.stderr
    return ran.returncode, json.loads(ran.stdout)


def _found(project: Path) -> list[dict[str, Any]]:
    """Return the findings of ``validate``, which refuses the project."""
    code, said = _said(project, "validate")
    assert code == 2
    return said["result"]["findings"]


def _fixes(findings: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    return [(one["code"], one["line"], one["fix"]) for one in findings]


def test_the_table_says_what_the_distribution_says() -> None:
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {extra: [re.match(r"[\w.-]+", one) for one in said[extra]] for extra in EXTRAS}
    assert {extra: tuple(name[0] for name in found if name) for extra, found in names.items()} == EXTRAS
    assert sorted(re.findall(r"\w+", said["all"][0].partition("[")[2])) == sorted(EXTRAS)


def test_the_environment_of_the_checkout_has_all_of_them() -> None:
    assert [extra for extra in EXTRAS if not is_installed(extra)] == []


def test_the_plugins_that_need_an_extra_are_those_of_the_table() -> None:
    """A new one that imports such a package belongs in ``conduit_dagster/extras.py``."""
    ran = _python(BARE + LOADED)
    assert ran.returncode == 0, ran.stderr
    expected = {(place.partition(".")[2].replace("_", "."), install_command(extra)) for place, extra in PLUGINS.items()}
    assert {tuple(one) for one in json.loads(ran.stdout)} == expected


def test_each_use_is_one_finding_at_its_place(project: Path) -> None:
    found = _found(project)
    assert _fixes(found) == [
        ("plugin.not_installed", 9, "pip install 'conduit-dagster[postgres]'"),
        ("plugin.not_installed", 12, "pip install 'conduit-dagster[javascript]'"),
        ("plugin.not_installed", 13, "pip install 'conduit-dagster[delta]'"),
    ]
    assert "the destination postgres needs the extra postgres" in found[0]["message"]


def test_other_pipelines_are_none_the_worse(project: Path) -> None:
    (project / "pipelines" / "other.yaml").write_text(OTHER)
    code, said = _said(project, "validate", "pipelines/other.yaml")
    assert (code, said["result"]["findings"]) == (0, [])


@pytest.mark.parametrize(("noun", "name"), [("connectors", "postgres"), ("processors", "avro.encode")])
def test_a_list_has_them_with_the_command_that_installs_them(project: Path, noun: str, name: str) -> None:
    code, said = _said(project, noun, "list")
    rows = {row["name"]: row["summary"] for row in said["result"][noun]}
    assert code == 0
    assert rows[name].startswith("Not installed: `pip install 'conduit-dagster[")
    needing = [place for place in PLUGINS if place.startswith(f"{noun}.")]
    assert sum(text.startswith("Not installed") for text in rows.values()) == len(needing) > 2


def test_a_state_store_in_postgres_says_it_as_well(project: Path) -> None:
    (project / "conduit.yaml").write_text("state: {url: 'postgresql://u:secret@h/d'}\n")
    code, said = _said(project, "pipelines", "list")
    assert code == 3
    assert said["error"]["code"] == "state.not_installed"
    assert said["error"]["fix"] == "pip install 'conduit-dagster[postgres]'"
    assert "state.url" in said["error"]["place"]


def test_settings_that_need_an_extra_are_found_by_validate(project: Path) -> None:
    (project / "pipelines" / "orders.yaml").write_text(OTHER)
    (project / "conduit.yaml").write_text("state: {url: 'postgresql://u@h/d'}\nlineage: {openlineage: true}\n")
    assert _fixes(_found(project)) == [
        ("state.not_installed", 1, "pip install 'conduit-dagster[postgres]'"),
        ("lineage.not_installed", 2, "pip install 'conduit-dagster[lineage]'"),
    ]


def test_staging_and_paths_in_s3_say_it_as_well(project: Path) -> None:
    (project / "conduit.yaml").write_text("state: {staging: 's3://lake/staging'}\n")
    (project / "pipelines" / "orders.yaml").write_text(OTHER.replace("./in.jsonl", "s3://lake/in.jsonl"))
    fix = "pip install 'conduit-dagster[s3]' wherever the pipeline runs, or use a local path"
    assert sorted(_fixes(_found(project))) == [("config.field_invalid", 1, fix), ("file.not_local", 6, fix)]


def test_a_task_on_a_worker_without_the_package_says_it_too() -> None:
    ran = _python(BARE + TASK)
    lacking, unknown = ran.stdout.splitlines()
    assert lacking.startswith("plugin.not_installed the destination postgres needs the extra postgres")
    assert unknown.startswith("plugin.unknown there is no destination nonsense on ")


def test_a_plugin_of_the_project_with_that_name_needs_nothing(project: Path) -> None:
    (project / "plugins").mkdir()
    (project / "plugins" / "mine.py").write_text(
        "from conduit_dagster.sdk import DriverDestination\n"
        "class Own(DriverDestination):\n"
        "    name = 'delta'\n"
        "    def deliver(self, records, delivery): pass\n"
    )
    assert [one["line"] for one in _found(project) if one["code"] == "plugin.not_installed"] == [9, 12]


def test_an_extra_that_is_not_there_is_no_failure_of_doctor(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr("conduit_dagster.cli.checks.is_installed", lambda extra: extra != "ui")
    main(["doctor", "--json"])
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["result"]["checks"]}
    assert checks["extras"]["level"] == "ok"
    assert checks["extras"]["message"].endswith("s3 installed; without ui")
    assert checks["extras"]["fix"] == "pip install 'conduit-dagster[ui]'"
