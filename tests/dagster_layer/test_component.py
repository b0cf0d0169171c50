"""The component in another project's ``defs`` folder, with Dagster's own ``dg``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dagster_layer.commands import call
from dagster_layer.project_folder import Folder
from lab.choice import some

pytestmark = pytest.mark.slow

PROJECT = """
[project]
name = "theirs"
version = "0.1"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "theirs"
"""
DEFINITIONS = """
from pathlib import Path
import dagster as dg

@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
REPORT = """
from pathlib import Path
import dagster as dg

@dg.asset(deps=[dg.AssetKey(["ingest", "first", "adults"])])
def report() -> None:
    lines = Path(__file__).with_name("ingest").joinpath("out", "adults.jsonl").read_text().splitlines()
    Path(__file__).with_name("report.txt").write_text(str(len(lines)))
"""
DEFS = """
type: conduit_dagster.PipelinesComponent
attributes:
  path: .
  translation:
    key_prefix: ingest
    group_name: "{{ pipeline.id }}_raw"
    tags: {role: "{{ role }}"}
"""

INLINE = """
  strict: true
  pipelines:
    - id: inline
      dead-letter-queue: {window-size: 0}
      connectors:
        - {id: in, type: source, plugin: file, settings: {path: data/people.jsonl, collection: people}}
        - {id: out, type: destination, plugin: file, settings: {path: inline.jsonl, sdk.record.format: payload/json}}
      processors:
        - {id: decode, plugin: json.decode, settings: {field: .Payload.After}}
        - id: set
          plugin: field.set
          settings: {field: .Payload.After.of, value: '{{ index .Metadata "opencdc.collection" }} inline'}
"""


def _dg(folder: Folder, *words: str) -> tuple[int, str]:
    ran = call(folder, "dg", *words, PYTHONPATH=str(folder.root / "src"))
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.usefixtures("connected")
@pytest.mark.parametrize("mistakes", some([False], [True]))
def test_a_project_that_exists_takes_pipelines_in(folder: Folder, mistakes: bool) -> None:
    """Listed, scaffolded, checked and run by the project's own executor with an asset behind it."""
    defs = folder.root / "src" / "theirs" / "defs"
    defs.mkdir(parents=True)
    (folder.root / "pyproject.toml").write_text(PROJECT)
    (defs.parent / "__init__.py").touch()
    (defs / "__init__.py").touch()
    (defs.parent / "definitions.py").write_text(DEFINITIONS)
    assert "conduit_dagster.PipelinesComponent" in _dg(folder, "list", "components", "--json")[1]
    code, said = _dg(folder, "scaffold", "defs", "conduit_dagster.PipelinesComponent", "ingest")
    assert code == 0, said
    ingest = defs / "ingest"
    assert {"defs.yaml", "conduit.yaml", "pipelines", "data"} <= {one.name for one in ingest.iterdir()}
    if mistakes:
        _mistakes_are_told(folder, ingest)
    (ingest / "defs.yaml").write_text(DEFS + INLINE)
    (defs / "report.py").write_text(REPORT)
    listed = json.loads(_last_line(_dg(folder, "list", "defs", "--json")[1]))
    groups = {asset["asset_key"]: asset["group_name"] for asset in listed["assets"]}
    assert (groups["ingest/first/adults"], groups["ingest/inline/out"]) == ("first_raw", "inline_raw")
    code, said = _dg(folder, "launch", "--assets", 'group:"first_raw" or group:"inline_raw" or key:"report"')
    assert code == 0, said
    written = Path(ingest / "out" / "adults.jsonl").read_text().splitlines()
    assert (defs / "report.txt").read_text() == str(len(written)) == "3"
    records = [json.loads(line) for line in (ingest / "inline.jsonl").read_text().splitlines()]
    assert len(records) > 0
    assert {record["of"] for record in records} == {"people inline"}


def _mistakes_are_told(folder: Folder, ingest: Path) -> None:
    """Those of ``defs.yaml``, of the pipelines in it, whose templates belong to records, and of files beside it."""
    (ingest / "defs.yaml").write_text(DEFS.replace("path: .", "paths: .") + INLINE.replace(": source", ": sauce"))
    code, said = _dg(folder, "check", "yaml")
    assert code == 1
    assert "ingest/defs.yaml:4" in said
    assert "'paths' was unexpected" in said
    assert "defs.yaml:15" in said
    assert "sauce" in said
    (ingest / "defs.yaml").write_text(DEFS + INLINE.replace("plugin: field.set", "name: field.set"))
    broken = ingest / "pipelines" / "broken.yaml"
    broken.write_text("version: '2.2'\npipelines:\n  - id: bad\n    connectors: 3\n")
    code, said = _dg(folder, "check", "defs")
    assert code == 1
    assert "defs.yaml:19:" in said
    assert "broken.yaml:4:" in said
    broken.unlink()
    (ingest / "defs.yaml").write_text(DEFS.replace("path: .", "path: pipelines/of/others") + INLINE)
    (ingest / "conduit.yaml").rename(ingest / "pipelines" / "conduit.yaml")
    code, said = _dg(folder, "check", "defs")
    assert code == 1
    assert "put conduit.yaml beside defs.yaml" in " ".join(said.split())
    (ingest / "pipelines" / "conduit.yaml").rename(ingest / "conduit.yaml")


def _last_line(text: str) -> str:
    return text[text.index("\n{") + 1 :] if not text.startswith("{") else text
