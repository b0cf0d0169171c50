"""Findings on a processor's settings and condition: at which place, and without values of the environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conduit_dagster.config import Finding
from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import open_catalogue

FILE = """\
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: ./in.jsonl}}
      - {id: out, type: destination, plugin: file, settings: {path: ./out.jsonl}}
    processors:
      - {id: x, plugin: PROCESSOR}
"""
SECRET = "n0t-for-eyes"
Finds = Callable[[str], list[Finding]]


@pytest.fixture
def finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Finds:
    """Return the findings on a processor, given as its plugin and what follows it in the file."""
    (tmp_path / "pipelines").mkdir()
    monkeypatch.setenv("KEY", SECRET)

    def find(processor: str) -> list[Finding]:
        (tmp_path / "pipelines" / "p.yaml").write_text(FILE.replace("PROCESSOR", processor))
        return list(open_catalogue(Project.find(tmp_path)).findings)

    return find


@pytest.mark.parametrize(
    ("processor", "setting"),
    [
        ("field.set, settings: {value: a, field: .Position}", "field"),
        ("skip, settings: {field: a, operator: '>', match: much}", "match"),
        ("skip, settings: {field: a, operator: '=~', match: '(' }", "match"),
        ("skip, settings: {field: a, operator: is, match: b}", "operator"),
        ("schema, settings: {tables: freeze, fields: 'a:int'}", "fields"),
        ("schema, settings: {fields: 'a:integer', fields.orders: 'id'}", "fields.orders"),
        ("schema, settings: {fields: 'a:integer', fields.orders: 'id:any, id:any'}", "fields.orders"),
        ("webhook.http, settings: {request.url: 'http://h', response.status: .Payload.After}", "response.status"),
        (
            "webhook.http, settings: {request.url: 'http://h', request.contentType: a, headers.Content-Type: b}",
            "request.contentType",
        ),
    ],
)
def test_a_finding_is_at_the_setting_at_fault(finds: Finds, processor: str, setting: str) -> None:
    """Also that of a rule between settings."""
    [finding] = finds(processor)
    assert finding.is_error and finding.path == f"/pipelines/0/processors/0/settings/{setting}"
    line = FILE.replace("PROCESSOR", processor).splitlines()[finding.line - 1]
    assert line[: finding.column - 1].rpartition(f"{setting}: ")[1], finding


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        ("webhook.http, settings: {request.url: 'http://h', header.X: a}", "headers.*"),
        ("'schema', settings: {fields: 'a:integer', field.orders: 'a:integer'}", "fields.*"),
        ("filter, settings: {when: a}", "no settings"),
    ],
)
def test_an_unknown_setting_is_told_with_all_that_are_known(finds: Finds, processor: str, expected: str) -> None:
    [finding] = finds(processor)
    assert finding.code == "setting.unknown"
    assert expected in (finding.expected or "").split(", ")


@pytest.mark.parametrize(
    "processor",
    [
        "filter, condition: \"after.key = '${KEY}'\"",
        "filter, condition: \"{{ eq .Payload.After.key '${KEY}' }}\"",
        "webhook.http, settings: {request.url: 'hooks.example.org/${KEY}'}",
    ],
)
def test_a_finding_shows_what_is_written_and_no_value_of_a_variable(finds: Finds, processor: str) -> None:
    [finding] = finds(processor)
    assert "${KEY}" in (finding.got or "")
    assert SECRET not in finding.render() + str(finding.as_json())


@pytest.mark.parametrize(
    "processor",
    ["field.set, settings: [field, .Key]", "json.decode, settings: {field: [.Key]}", "json.decode, settings: .Key"],
)
def test_settings_that_are_no_settings_are_not_missing_as_well(finds: Finds, processor: str) -> None:
    """One mistake was two errors, of which one said to add what is there."""
    [finding] = finds(processor)
    assert finding.code == "config.field_invalid"


def test_a_setting_that_is_missing_beside_such_a_one_is_told(finds: Finds) -> None:
    found = finds("json.decode, settings: {fields: [.Key]}")
    assert sorted(finding.code for finding in found) == ["config.field_invalid", "setting.required"]


@pytest.mark.parametrize("path", ["~/in.jsonl", "~"])
def test_the_home_folder_as_a_shell_writes_it_is_told(tmp_path: Path, path: str) -> None:
    """A destination made a folder called ``~`` in the project."""
    (tmp_path / "pipelines").mkdir()
    text = FILE.replace("./in.jsonl", f"'{path}'").replace("PROCESSOR", "json.encode, settings: {field: .Key}")
    (tmp_path / "pipelines" / "p.yaml").write_text(text)
    [finding] = open_catalogue(Project.find(tmp_path)).findings
    assert (finding.code, finding.severity, finding.got, finding.line) == ("setting.home", "warning", path, 5)


OWN = """
from pydantic import BaseModel, field_validator
from conduit_dagster.sdk import Processor, ProcessorSettings


class Tls(BaseModel):
    ca: str = ""


class Settings(ProcessorSettings):
    tls: Tls = Tls()
    tags: list[str] = []
    mode: str = ""

    @field_validator("mode")
    @classmethod
    def _known(cls, mode: str) -> str:
        raise SystemExit(3)


class Own(Processor):
    name = "own"
    Settings = Settings

    def process(self, record):
        return record
"""


@pytest.mark.parametrize("settings", ["tls.ca: a", "tls: a", "tags: a"])
def test_a_setting_that_no_text_can_be_tells_where_it_is_said_how(finds: Finds, tmp_path: Path, settings: str) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "own.py").write_text(OWN)
    [finding] = finds(f"own, settings: {{{settings}}}")
    assert finding.path.endswith(f"/settings/{settings.partition(':')[0]}")
    assert "docs/plugins.md" in str(finding.fix)


def test_a_typo_behind_the_dot_of_a_built_in_names_the_nearest(finds: Finds) -> None:
    """The fix was that for groups of settings, which only a plugin of one's own may have."""
    found = finds("custom.javascript, settings: {script.paht: a.js}")
    [fix] = [one.fix for one in found if one.got == "script.paht"]
    assert "script.path" in str(fix)


def test_a_validator_that_exits_is_a_finding(finds: Finds, tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "own.py").write_text(OWN)
    [finding] = finds("own, settings: {mode: a}")
    assert (finding.code, finding.severity) == ("plugin.failed", "error")
    assert "plugins/own.py:18: SystemExit: 3" in finding.message
