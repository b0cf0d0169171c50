"""``connectors`` and ``processors``, and the reference pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_dagster.cli.reference_pages import reference_pages

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PLUGIN = '''
from conduit_dagster.sdk import ConnectorSettings, DriverDestination
from conduit_dagster.sdk import Processor, ProcessorSettings


class ShoutSettings(ProcessorSettings):
    field: str
    """What to shout."""
    times: int = 3
    """How often."""


class Shout(Processor):
    """Say it louder. And again."""

    name = "shout"
    Settings = ShoutSettings

    def process(self, record):
        return record


class Void(DriverDestination):
    """Forgets."""

    name = "void"

    def deliver(self, records, delivery):
        pass
'''


@pytest.fixture
def own(project: Path) -> Path:
    (project / "plugins").mkdir()
    (project / "plugins" / "mine.py").write_text(PLUGIN)
    return project


def test_lists_name_everything_with_a_summary(run, own: Path) -> None:
    rows = run("connectors", "list", "--json").envelope["result"]["connectors"]
    assert ("file", "source", "built in") in [(row["name"], row["kind"], row["origin"]) for row in rows]
    assert ("void", "destination", "project") in [(row["name"], row["kind"], row["origin"]) for row in rows]
    rows = run("processors", "list", "--json").envelope["result"]["processors"]
    assert {"field.set", "filter", "shout"} <= {row["name"] for row in rows}
    assert all(row["summary"] for row in rows)


def test_a_connector_is_described_as_source_and_destination(run, project: Path) -> None:
    pages = run("connectors", "describe", "builtin:file@v1", "--json").envelope["result"]["pages"]
    assert [page["kind"] for page in pages] == ["source", "destination"]
    settings = {one["name"]: one for one in pages[0]["settings"]}
    assert settings["path"]["required"]
    assert settings["on-gone"]["type"] == "one of `fail`, `skip`"
    assert settings["on-gone"]["default"] == "fail"
    assert settings["on-gone"]["description"].startswith("What to do when an unread range")


def test_a_plugin_of_the_project_is_described_by_its_docstrings(run, own: Path) -> None:
    (page,) = run("processors", "describe", "shout", "--json").envelope["result"]["pages"]
    assert page["text"] == "Say it louder. And again."
    assert [(one["name"], one["type"], one["default"], one["description"]) for one in page["settings"]] == [
        ("field", "text", None, "What to shout."),
        ("times", "integer", "3", "How often."),
    ]


def test_a_plugin_that_can_not_be_used_is_told_not_hidden(run, own: Path) -> None:
    (own / "plugins" / "mine.py").write_text(PLUGIN.replace("def process", "def handle"))
    told = "plugins/mine.py:19: Shout lacks process"
    assert told in run("processors", "describe", "shout", "--json").envelope["error"]["fix"]
    assert run("processors", "list", "--json").envelope["result"]["broken"] == [told]


@pytest.mark.slow
def test_every_builtin_setting_is_described(run, project: Path) -> None:
    for noun in ("connector", "processor"):
        for row in run(f"{noun}s", "list", "--json").envelope["result"][f"{noun}s"]:
            described = run(f"{noun}s", "describe", row["name"], "--json").envelope["result"]["pages"]
            for page in described:
                assert page["text"], page["name"]
                assert all(one["description"] for one in page["settings"]), page["name"]


@pytest.mark.parametrize("name", ["base64.decode", "field.set", "json.decode", "unwrap.debezium", "unwrap.opencdc"])
def test_a_setting_that_names_a_field_says_so(run, project: Path, name: str) -> None:
    [page] = run("processors", "describe", name, "--json").envelope["result"]["pages"]
    assert {one["name"]: one["type"] for one in page["settings"]}["field"] == "field reference"


def test_an_unknown_plugin_names_the_nearest(run, project: Path) -> None:
    ran = run("processors", "describe", "field.sett", "--json")
    assert ran.code == 2
    assert ran.envelope["error"]["fix"] == "did you mean field.set?"


def test_descriptions_are_readable_without_a_terminal(run, project: Path) -> None:
    ran = run("processors", "describe", "field.set")
    assert ran.code == 0
    assert "field reference" in ran.out
    assert "\x1b" not in ran.out


@pytest.mark.parametrize("name", ["connectors.md", "processors.md", "pipeline-file.md"])
def test_the_committed_reference_is_up_to_date(name: str) -> None:
    """To update them: python -m conduit_dagster.cli.reference_pages docs/reference."""
    assert (REFERENCE / name).read_text(encoding="utf-8") == reference_pages()[name]
