"""Whatever a pipeline file contains: a finding or a pipeline that can run, and no effect on the file beside it."""

from __future__ import annotations

import importlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from lab.mutated_files import files

from conduit_dagster.cli.pipeline_list import listed
from conduit_dagster.cli.terminal import console
from conduit_dagster.cli.validate import judged, show_findings
from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import Catalogue, open_catalogue

MANY = int(os.environ.get("FUZZ_EXAMPLES") or 150)
"""`make fuzz N=…` sets another number."""
GOOD = """\
version: "2.2"
pipelines:
  - id: untouched
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: ./untouched-in}}
      - {id: out, type: destination, plugin: file, settings: {path: ./untouched-out}}
"""
fuzzed = settings(max_examples=MANY, suppress_health_check=list(HealthCheck))
Open = Callable[[bytes], Catalogue]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Open a project with a good file and one with the given bytes."""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "good.yaml").write_text(GOOD)
    monkeypatch.chdir(tmp_path)

    def open_(data: bytes) -> Catalogue:
        (tmp_path / "pipelines" / "bad.yaml").write_bytes(data)
        return open_catalogue(Project.find(tmp_path, {}))

    return open_


def messages(catalogue: Catalogue) -> list[tuple[str, str]]:
    return [(finding.code, Path(finding.file).name) for finding in catalogue.findings if finding.is_error]


def test_an_empty_list_of_connectors_is_a_finding(opened: Open) -> None:
    """An empty value counts as missing, also for a list."""
    catalogue = opened(b'version: "2.2"\npipelines: [{id: x, connectors: ""}]\n')
    assert messages(catalogue) == [("pipeline.no_source", "bad.yaml"), ("pipeline.no_destination", "bad.yaml")]
    assert catalogue.get("untouched") is not None


STAGES = {
    "parse": ("conduit_dagster.config.parse", "_version_finding"),
    "read": ("conduit_dagster.config.parse", "load_documents"),
    "pipeline": ("conduit_dagster.config.rules", "between_fields"),
    "plugins": ("conduit_dagster.engine.bound_pipeline", "make_program"),
    "chains": ("conduit_dagster.engine.validation.cross_pipeline_rules", "is_builtin"),
    "owners": ("conduit_dagster.engine.validation.cross_pipeline_rules", "_check_own_output"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_defect_in_a_stage_is_a_finding_of_the_file_that_meets_it(
    opened: Open, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Its text, which may quote a secret, is only in the traceback; the other file is not affected."""
    module, name = STAGES[stage]
    real = getattr(importlib.import_module(module), name)

    def defective(*arguments: Any, **more: Any) -> Any:
        if any("dfct" in repr(one) for one in arguments):
            raise ZeroDivisionError("s3cret")
        return real(*arguments, **more)

    monkeypatch.setattr(f"{module}.{name}", defective)
    catalogue = opened(GOOD.replace("untouched", "dfct").replace("plugin: file", "plugin: file@dfct", 1).encode())
    assert messages(catalogue) == [("config.check_failed", "bad.yaml")]
    assert [one.id for one in catalogue.bound] == ["untouched"]
    [finding] = [one for one in catalogue.findings if one.is_error]
    assert "ZeroDivisionError in " in finding.message
    assert "s3cret" not in finding.render() + str(finding.as_json())
    assert "ZeroDivisionError: s3cret" in finding.render(debug=True)
    assert "ZeroDivisionError: s3cret" in str(finding.as_json(debug=True))


def test_a_file_whose_name_is_not_text_is_a_finding(opened: Open, tmp_path: Path) -> None:
    Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), b"pipelines", b"b\xe9.yaml"))).write_text(GOOD)  # noqa: PTH118
    catalogue = opened(b"")
    assert messages(catalogue) == [("config.file_unreadable", "b\\udce9.yaml")]
    assert catalogue.get("untouched") is not None


@pytest.mark.parametrize("content", [b"\xff", b"raise SystemExit(3)", b"import sdk_that_is_not_there"])
def test_a_plugin_that_cannot_be_read_or_loaded_takes_no_pipeline_down(
    opened: Open, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "mine.py").write_bytes(content)
    catalogue = opened(b"")
    assert messages(catalogue) == [("plugin.broken", "mine.py")]
    assert [finding.trace for finding in catalogue.findings if finding.is_error] != [None]
    assert catalogue.get("untouched") is not None


FAULTY = """
from conduit_dagster.sdk import Processor, ProcessorSettings

class Faulty(Processor):
    name = "faulty"
    Settings = ProcessorSettings

    def __init__(self, settings, context):
        raise LookupError("no such thing")

    def process(self, record):
        return record
"""


def test_a_plugin_that_fails_when_it_is_set_up_is_named_with_its_line(opened: Open, tmp_path: Path) -> None:
    """It is the plugin's defect, and need not be reported to this project."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "mine.py").write_text(FAULTY)
    text = GOOD.replace("untouched", "bad") + "    processors: [{id: one, plugin: faulty}]\n"
    catalogue = opened(text.encode())
    assert messages(catalogue) == [("plugin.failed", "bad.yaml")]
    [finding] = [one for one in catalogue.findings if one.is_error]
    assert "plugins/mine.py:9: LookupError: no such thing" in finding.message
    assert finding.fix is not None and "conduit-dagster validate --debug" in finding.fix


DESCRIBED = """
from pathlib import Path
from conduit_dagster.sdk import DriverDestination

class Described(DriverDestination):
    name = "described"
    {what} = property(lambda self: {given})

    def deliver(self, records, delivery):
        pass
"""


@pytest.mark.parametrize("what", ["owned", "address", "dataset", "declared_columns"])
@pytest.mark.parametrize(("given", "code"), [("Path('/out')", "plugin.result_invalid"), ("1 / 0", "plugin.failed")])
def test_what_a_plugin_says_of_itself_is_checked_before_it_runs(
    opened: Open, tmp_path: Path, what: str, given: str, code: str
) -> None:
    """A path was an outage of the state store, or an error in code of ours; and Dagster had to be told it as well."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "mine.py").write_text(DESCRIBED.format(what=what, given=given))
    text = GOOD.replace("untouched", "bad").replace("file, settings: {path: ./bad-out}", "described")
    catalogue = opened(text.encode())
    assert messages(catalogue) == [(code, "bad.yaml")]
    assert catalogue.get("untouched") is not None


@pytest.mark.parametrize(
    ("processor", "code", "file"),
    [
        ("python, settings: {function: 'gone:f'}", "python.unreadable", "gone.py"),
        ("custom.javascript, settings: {script.path: gone.js}", "javascript.unreadable", "gone.js"),
    ],
)
def test_a_file_that_a_processor_names_and_that_is_not_there_is_named_at_the_processor(
    opened: Open, processor: str, code: str, file: str
) -> None:
    text = GOOD.replace("untouched", "bad") + f"    processors: [{{id: one, plugin: {processor}}}]\n"
    catalogue = opened(text.encode())
    assert messages(catalogue) == [(code, "bad.yaml")]
    [finding] = [one for one in catalogue.findings if one.is_error]
    assert finding.path == "/pipelines/0/processors/0/settings"
    assert Path(finding.got or "").name == file


@pytest.mark.parametrize(
    "field",
    [
        "plugin: postgres, settings: {url: $NO, table: t}",
        "plugin: file, settings: {path: ./o, sdk.record.format: $NO}",
        "plugin: file, settings: {path: $NO}, condition: $NO",
        "plugin: log, processors: [{id: p, plugin: field.set, settings: {field: $NO, value: a}}]",
        "plugin: $NO",
    ],
)
def test_an_unset_variable_is_the_only_finding_on_its_value(
    opened: Open, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    monkeypatch.delenv("NO", raising=False)
    text = GOOD.replace("untouched", "bad").replace("plugin: file, settings: {path: ./bad-out}", field)
    assert {code for code, _ in messages(opened(text.encode()))} == {"config.env_unset"}


def test_an_unset_variable_hides_no_other_mistake(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO", raising=False)
    bad = "plugin: file, settings: {path: $NO, if-changed: perhaps}"
    text = GOOD.replace("untouched", "bad").replace("plugin: file, settings: {path: ./bad-out}", bad)
    assert {code for code, _ in messages(opened(text.encode()))} == {"config.env_unset", "setting.invalid"}


SOURCE, DESTINATION = (
    "type: source, plugin: file, settings: {path: ./bad-in}",
    "plugin: file, settings: {path: ./bad-out}",
)
PLACES = {
    "file source": (SOURCE, "type: source, plugin: file, settings: {path: PATH}"),
    "parquet source": (SOURCE, "type: source, plugin: parquet, settings: {path: PATH}"),
    "spark source": (SOURCE, "type: source, plugin: 'spark:json', settings: {path: PATH}"),
    "file": (DESTINATION, "plugin: file, settings: {path: PATH}"),
    "parquet": (DESTINATION, "plugin: parquet, settings: {path: PATH}"),
    "delta": (DESTINATION, "plugin: delta, settings: {path: PATH}"),
    "spark": (DESTINATION, "plugin: 'spark:json', settings: {path: PATH}"),
    "queue": ("processors: []", "dead-letter-queue: {plugin: file, window-size: 0, settings: {path: PATH}}"),
}


def placed(place: str, path: str) -> bytes:
    text = GOOD.replace("untouched", "bad") + "    processors: []\n"
    old, new = PLACES[place]
    assert old in text
    return text.replace(old, new.replace("PATH", json.dumps(path))).encode()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("./o\0b", "NUL"),
        ("./" + "é" * 128, "256 bytes long"),
        ("./" + "a" * 256 + "/b", "256 bytes long"),
        ("a/" * 2048 + "b", "4097 bytes long"),
    ],
)
def test_a_path_that_no_file_can_have_is_one_finding_at_the_setting(
    opened: Open, place: str, path: str, says: str
) -> None:
    [finding] = [one for one in opened(placed(place, path)).findings if one.is_error]
    assert (finding.code, finding.path.rsplit("/", 2)[1:]) == ("setting.invalid", ["settings", "path"])
    assert says in finding.message
    assert "\0" not in finding.render()


@pytest.mark.parametrize("place", [place for place in PLACES if "spark" not in place])
def test_a_path_that_is_too_long_only_with_the_projects_folder_is_a_finding(opened: Open, place: str) -> None:
    assert messages(opened(placed(place, "a/" * 2046 + "b"))) == [("file.path_too_long", "bad.yaml")]


@pytest.mark.parametrize("place", [place for place in PLACES if "spark" not in place])
@pytest.mark.parametrize("path", ["gs://bucket/a.jsonl", "nope://x/y"])
def test_a_url_that_a_run_would_refuse_is_refused(opened: Open, place: str, path: str) -> None:
    """``validate`` reports the same code as a run: both create the connector."""
    catalogue = opened(placed(place, path))
    assert messages(catalogue) == [("file.not_local", "bad.yaml")]
    assert any(one.path.endswith("/settings") for one in catalogue.findings)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("path", ["./loop/x", "./loop", "./file/x"])
def test_a_path_that_cannot_be_looked_at_is_for_the_run_to_refuse(
    opened: Open, tmp_path: Path, place: str, path: str
) -> None:
    """Files come and go: ``validate`` opens none, and a link to itself does not crash it."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    assert messages(opened(placed(place, path))) == []


@given(data=files())
@fuzzed
def test_a_finding_or_a_run(opened: Open, data: bytes) -> None:
    """No file raises, goes unreported, or reaches the safety net; every finding can be printed."""
    catalogue = opened(data)
    assert [finding.trace for finding in catalogue.findings if finding.code == "config.check_failed"] == []
    assert catalogue.get("untouched") is not None
    bound = {one.id for one in catalogue.bound}
    for parsed in catalogue.loaded.pipelines:
        assert (parsed.config.id in bound) == parsed.runnable
        assert parsed.runnable or any(one.is_error and one.file == parsed.file for one in catalogue.findings)
    said = judged(catalogue, catalogue.findings).envelope("validate")
    assert json.loads(said)["result"]["findings"] == [finding.as_json() for finding in catalogue.findings]
    said.encode()
    page = io.StringIO()
    show_findings(console(page), catalogue.findings)
    page.getvalue().encode()
    assert [row["id"] for row in listed(catalogue, None)] == [one.config.id for one in catalogue.loaded.pipelines]
