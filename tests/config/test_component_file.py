"""Pipelines written in a Dagster component's ``defs.yaml``."""

from __future__ import annotations

from pathlib import Path

from conduit_dagster.config.parse import parse_text
from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import open_catalogue

DEFS = """\
type: theirs.Pipelines
attributes:
  translation:
    description: "{{ pipeline.id }} costs $5 and ${NOT_OURS}"
  pipelines:
    - id: inline
      connectors:
        - {id: in, type: source, plugin: file, settings: {path: "${FOLDER}/in.jsonl"}}
        - {id: out, type: destination, plugin: file, settings: {path: out.jsonl}}
      processors:
        - id: set
          plugin: field.set
          settings: {field: .Metadata.name, value: '{{ index .Metadata "opencdc.collection" }}'}
---
type: dagster_dbt.DbtProjectComponent
attributes: {pipelines: [], project: dbt}
"""


def test_pipelines_of_a_component_are_read_as_those_of_a_file() -> None:
    parsed = parse_text(DEFS, "defs.yaml", {"FOLDER": "data"}, strict=True)
    assert parsed.findings == []
    [pipeline] = parsed.pipelines
    assert pipeline.config.sources[0].settings["path"] == "data/in.jsonl"
    assert pipeline.config.processors[0].settings["value"] == '{{ index .Metadata "opencdc.collection" }}'
    assert pipeline.locate("/processors/0/plugin") == (12, 19)


def test_a_mistake_has_its_line_and_column_in_the_component() -> None:
    text = DEFS.replace("plugin: field.set", "plugins: field.set").replace("${FOLDER}", "${UNSET}")
    found = [(one.code, one.line, one.column) for one in parse_text(text, "defs.yaml", {}).findings]
    assert found == [
        ("config.env_unset", 8, 66),
        ("config.field_required", 11, 11),
        ("config.field_unknown", 12, 11),
    ]


def test_what_is_not_a_list_is_found() -> None:
    [finding] = parse_text("type: x.Y\nattributes:\n  pipelines: {id: a}\n", "defs.yaml", {}).findings
    assert (finding.line, finding.column, finding.path) == (3, 14, "/attributes/pipelines")


def test_a_project_reads_its_component_beside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "defs.yaml").write_text(DEFS.replace("${FOLDER}", "data"))
    project = Project.find(tmp_path)
    assert project.pipeline_paths == [tmp_path / "defs.yaml"]
    assert project.has_pipelines
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "more.yaml").write_text(
        "version: '2.2'\npipelines:\n- id: more\n  connectors:\n"
        "  - {id: in, type: source, plugin: file, settings: {path: a}}\n"
        "  - {id: out, type: destination, plugin: file, settings: {path: b}}\n"
    )
    catalogue = open_catalogue(project)
    assert [finding.render() for finding in catalogue.findings] == []
    assert [bound.id for bound in catalogue.bound] == ["more", "inline"]


def test_a_component_without_pipelines_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "defs.yaml").write_text("type: x.Y\nattributes: {path: .}\n")
    project = Project.find(tmp_path)
    assert project.pipeline_paths == [tmp_path / "pipelines"]
    assert not project.has_pipelines
