"""``validate`` and ``lint``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from lab.support import Lab, destination, source


def test_a_good_project_is_valid(run, project: Path) -> None:
    ran = run("validate", "--json")
    assert ran.code == 0
    assert ran.envelope["command"] == "validate"
    assert ran.envelope["result"]["pipelines"] == [
        {"id": "orders", "file": str(project / "pipelines/orders.yaml"), "valid": True}
    ]


def test_all_findings_of_all_files_come_at_once_with_their_places(run, project: Path, pipeline) -> None:
    (project / "a.yaml").write_text(pipeline("a").replace("json.decode", "json.decod"))
    (project / "b.yaml").write_text(pipeline("b").replace("path: ./in.jsonl", "pat: ./in.jsonl"))
    ran = run("validate", "a.yaml", "b.yaml", "--json")
    assert ran.code == 2
    found = [(row["file"], row["code"]) for row in ran.envelope["result"]["findings"]]
    assert ("a.yaml", "plugin.unknown") in found
    assert ("b.yaml", "setting.required") in found
    assert ran.envelope["error"]["code"] == "validation.failed"


@pytest.mark.parametrize("place", ["./in.jsonl", "./orders.jsonl"])
def test_a_path_that_the_locale_cannot_encode_is_one_finding(shell, project: Path, pipeline, place: str) -> None:
    (project / "pipelines" / "orders.yaml").write_text(pipeline().replace(place, "./é.jsonl"), encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    [found] = shell.run("validate", "--json", env={**os.environ, **ascii_only}).envelope["result"]["findings"]
    assert (found["code"], found["path"].rsplit("/", 1)[1]) == ("setting.invalid", "path")
    assert "this process's locale encodes names as ascii" in found["message"]
    assert "PYTHONUTF8=1" in found["fix"]


def test_a_finding_is_printed_with_file_line_column_and_fix(run, project: Path, pipeline) -> None:
    text = pipeline("a").replace("json.decode", "json.decod")
    (project / "a.yaml").write_text(text)
    before, _, _ = text.partition("json.decod")
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    ran = run("validate", "a.yaml")
    assert ran.code == 2
    assert f"a.yaml:{line}:{column}: error plugin.unknown" in ran.out
    assert "did you mean json.decode?" in ran.out
    assert "\x1b" not in ran.out + ran.err


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{", "config.parse_error"),
        (b"\xff\xfe\x00", "config.file_unreadable"),
        (b"", "config.file_empty"),
        (b"version: '9.0'\npipelines: []\n", "config.version_unknown"),
    ],
)
def test_bad_files_are_findings_and_no_traces(run, project: Path, content: bytes, code: str) -> None:
    (project / "bad.yaml").write_bytes(content)
    ran = run("validate", "bad.yaml", "--json")
    assert code in [row["code"] for row in ran.envelope["result"]["findings"]]
    assert "Traceback" not in ran.err


def test_a_missing_file_is_a_finding(run, project: Path) -> None:
    assert run("validate", "nowhere.yaml").code == 2


def test_strict_turns_unknown_keys_into_errors(run, project: Path, pipeline) -> None:
    (project / "a.yaml").write_text(pipeline("a", "colour: red"))
    assert run("validate", "a.yaml").code == 0
    assert run("validate", "a.yaml", "--strict").code == 2


def test_a_broken_plugin_is_a_finding(run, project: Path) -> None:
    (project / "plugins").mkdir()
    (project / "plugins" / "mine.py").write_text("raise RuntimeError('no')\n")
    ran = run("validate", "--json")
    assert ran.code == 2
    assert "plugin.broken" in [row["code"] for row in ran.envelope["result"]["findings"]]


def test_a_traceback_is_shown_only_on_request(run, project: Path) -> None:
    (project / "plugins").mkdir()
    (project / "plugins" / "mine.py").write_text("raise RuntimeError('no')\n")
    assert "Traceback" not in run("validate").out + run("validate", "--json").out
    assert "RuntimeError: no" in run("validate", "--debug").out.partition("Traceback")[2]
    [finding] = run("validate", "--debug", "--json").envelope["result"]["findings"]
    assert "RuntimeError: no" in finding["trace"]


def test_a_bad_file_takes_neither_validate_nor_list_down(run, project: Path) -> None:
    (project / "pipelines" / "bad.yaml").write_text('version: "2.2"\npipelines: [{id: x, connectors: ""}]\n')
    ran = run("validate", "--json")
    assert ran.code == 2
    assert {one["id"]: one["valid"] for one in ran.envelope["result"]["pipelines"]} == {"x": False, "orders": True}
    assert [row["id"] for row in run("pipelines", "list", "--json").envelope["result"]["pipelines"]] == ["x", "orders"]


def test_an_option_that_is_not_there_yet_is_said(run, project: Path, pipeline) -> None:
    (project / "a.yaml").write_text(pipeline("a", "delivery: {drift: true}"))
    ran = run("validate", "a.yaml", "--json")
    (finding,) = [row for row in ran.envelope["result"]["findings"] if row["code"] == "option.not_yet"]
    assert "plugin: pipeline" in finding["fix"]


def _advice(run, project: Path, text: str) -> list[str]:
    (project / "a.yaml").write_text(text)
    ran = run("lint", "a.yaml", "--json")
    assert ran.code == 0
    return [row["code"] for row in ran.envelope["result"]["findings"]]


def test_lint_has_nothing_to_say_about_a_good_file(run, project: Path, pipeline) -> None:
    assert _advice(run, project, pipeline("a")) == []


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("plugin: file\n      window-size: 0", "plugin: file", "lint.first_nack_stops"),
        ("path: ./in.jsonl", "path: /in.jsonl", "lint.path_absolute"),
        ("plugin: json.decode", "plugin: builtin:json.decode@v1", "lint.version_ignored"),
        ("{id: decode,", "{id: decode, workers: 4,", "lint.workers_ignored"),
        ("plugin: json.decode", "type: json.decode", "config.field_renamed"),
    ],
)
def test_lint_advises(run, project: Path, pipeline, old: str, new: str, code: str) -> None:
    text = pipeline("a")
    assert old in text
    assert _advice(run, project, text.replace(old, new)) == [code]


def test_lint_says_where_dead_letters_are_only_logged(run, project: Path, pipeline) -> None:
    before, _, _ = pipeline("a").partition("    dead-letter-queue:")
    assert _advice(run, project, before + "    dead-letter-queue: {window-size: 0}\n") == ["lint.dead_letters_logged"]


def test_lint_fails_on_advice_when_it_is_strict(run, project: Path, pipeline) -> None:
    (project / "a.yaml").write_text(pipeline("a").replace("./in.jsonl", "/in.jsonl"))
    assert run("lint", "a.yaml").code == 0
    assert run("lint", "a.yaml", "--strict").code == 2


@pytest.mark.parametrize("plugin", ["file", "kafka"])
def test_a_misspelled_setting_of_conduits_sdk_is_told(run: Any, project: Path, plugin: str) -> None:
    """It was passed over in silence, and the records were written in another format."""
    lab = Lab(project)
    settings = {"file": {"path": "./out.jsonl"}, "kafka": {"servers": "b:9092", "topic": "t"}}[plugin]
    lab.pipeline(connectors=[source(), destination(plugin=plugin, settings={**settings, "sdk.record.formt": "x"})])
    [finding] = run("validate", "pipelines/p.yaml", "--json").envelope["result"]["findings"]
    assert (finding["code"], finding["fix"]) == ("setting.unknown", "did you mean sdk.record.format?")


def test_settings_of_conduits_sdk_that_do_nothing_are_told(run: Any, project: Path) -> None:
    """Each by its name, with the reason; not those that are off in Conduit as well."""
    lab = Lab(project)
    idle = {"sdk.batch.size": "100", "sdk.rate.perSecond": "5", "sdk.schema.extract.payload.enabled": "true"}
    quiet = {"sdk.batch.delay": "0s", "sdk.schema.extract.key.enabled": "false", "sdk.record.format": "opencdc/json"}
    lab.pipeline(connectors=[source(), destination(settings={"path": "./out.jsonl", **idle, **quiet})])
    ran = run("validate", "pipelines/p.yaml", "--json")
    findings = ran.envelope["result"]["findings"]
    assert ran.code == 0
    assert [(one["code"], one["path"].rpartition("/")[2]) for one in findings] == [
        ("setting.idle", key) for key in idle
    ]
    assert "delivery.batch-size" in findings[0]["message"]
