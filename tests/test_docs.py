"""The documentation: its site builds without warnings, its YAML is valid, and its commands exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from lab.modules import ROOT

from conduit_dagster.cli.main import EXAMPLES, app, main

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    """Strict: a page missing from the navigation, and a link or anchor that leads nowhere, fail it."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / "site" / "concepts" / "index.html").exists()


def test_links_of_the_readme_lead_somewhere() -> None:
    missing = [link for link in _LINK.findall((ROOT / "README.md").read_text()) if not (ROOT / link).exists()]
    assert missing == []


FOREIGN = {"spec", "attributes", "settings"}
"""Keys of blocks for Kubernetes and for Dagster, and of a part of a connector."""
PROJECT = {"alerts", "lineage", "spark", "state"}
"""Keys of blocks of ``conduit.yaml``; others without ``pipelines`` are of a pipeline."""
OWN_PLUGINS = {"plugins.md", "writing-a-connector.md", "writing-a-processor.md"}
"""Pages whose pipelines use plugins of the page."""
SERVERS = {"KAFKA_SERVERS": "broker:9092", "ALERT_WEBHOOK": "https://hooks.example.org/x", "BUCKET": "lake"}
"""Values of variables that are no URL of a database."""


def _ends(name: str) -> dict[str, Any]:
    kind = "source" if name == "in" else "destination"
    return {"id": name, "type": kind, "plugin": "file", "settings": {"path": f"./{name}.jsonl"}}


def _completed(part: Any) -> str:
    """Return a pipeline file with a pipeline that has a part."""
    part = {"connectors": part} if isinstance(part, list) else part
    given = part.get("connectors", [_ends("out")])
    connectors = given if any(one["type"] == "source" for one in given) else [_ends("in"), *given]
    return yaml.safe_dump({"version": "2.2", "pipelines": [{"id": "p", **part, "connectors": connectors}]})


def _blocks() -> Iterator[Any]:
    for page in PAGES:
        for number, (language, text) in enumerate(_BLOCK.findall(page.read_text())):
            if language == "yaml":
                yield pytest.param(page.name, text, id=f"{page.name}-{number}")


@pytest.mark.parametrize(("page", "text"), [*_blocks()])
def test_yaml_in_the_documentation_is_valid(
    page: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole files and parts of them, with the settings of their plugins, as ``validate`` sees them in a project."""
    text = re.sub(r"\$\{file:[^}]+\}", "${file:./secret}", text)
    (tmp_path / "secret").write_text("6Wq-x1")
    for name in re.findall(r"\$\{(\w+)\}", text):
        monkeypatch.setenv(name, SERVERS.get(name, f"postgresql://u@{name.lower().replace('_', '-')}/d"))
    block = next(iter(yaml.safe_load_all(text)))
    keys = set[str](block if isinstance(block, dict) else ())
    if keys & FOREIGN:
        return
    is_project, is_whole = bool(keys) and keys <= PROJECT, "pipelines" in keys
    (tmp_path / "conduit.yaml").write_text(text if is_project else "{}")
    (tmp_path / "block.yaml").write_text(text if is_whole else _completed({} if is_project else block))
    monkeypatch.chdir(tmp_path)
    main(["validate", "block.yaml", "--strict", "--json"])
    found = json.loads(capsys.readouterr().out)
    findings = found["result"]["findings"] if found["result"] else [found["error"]]
    known = {"plugin.unknown"} if page in OWN_PLUGINS else set[str]()
    assert [finding for finding in findings if finding["code"] not in known] == []


AUTHORS = {"conduit_dagster", "conduit_dagster.sdk", "conduit_dagster.testing", "conduit_dagster.testing.conformance"}
"""Where code outside of this repository imports from."""


def test_code_that_is_shown_imports_public_names() -> None:
    shown = [text for page in PAGES for language, text in _BLOCK.findall(page.read_text()) if language == "python"]
    shown += [file.read_text() for file in (ROOT / "conduit_dagster" / "cli" / "templates").glob("new_*.txt")]
    found = {name for text in shown for name in re.findall(r"^from (conduit_dagster[\w.]*) import", text, re.MULTILINE)}
    assert found == AUTHORS


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        text = page.read_text()
        lines = re.findall(r"^(?: {4}|)conduit-dagster (.+)$", text, re.MULTILINE)
        for line in [*lines, *re.findall(r"`conduit-dagster ([^`]+)`", text)]:
            yield page.name, line.strip()


@cache
def command_line() -> Any:
    """Made from the functions, which takes typer longer than all else here."""
    return typer.main.get_command(app)


def test_every_verb_has_two_examples() -> None:
    def verbs(command: Any, above: str = "") -> Iterator[str]:
        for name, below in command.commands.items():
            yield from verbs(below, f"{above}{name} ") if hasattr(below, "commands") else [f"{above}{name}"]

    assert set(verbs(command_line())) == set(EXAMPLES)
    assert {len(examples) for examples in EXAMPLES.values()} == {2}


_EXAMPLES = {("main.py", line) for examples in EXAMPLES.values() for line in examples}


@pytest.mark.parametrize(("page", "line"), sorted(_EXAMPLES | set(commands())))
def test_commands_in_the_documentation_exist(page: str, line: str) -> None:
    """Their verbs and options; values are not checked."""
    command = command_line()
    words = shlex.split(line, comments=True)
    ends = [place for place, word in enumerate(words) if word in ("&&", "|", ">")]
    words = words[: ends[0]] if ends else words
    while hasattr(command, "commands") and words:
        command = command.commands.get(words.pop(0))
        assert command is not None, f"{page}: {line}"
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    said = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert said <= known | {"--help"}, f"{page}: {line}"
