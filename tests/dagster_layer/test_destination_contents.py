"""What a destination's asset shows of its content: rows, a preview, column lineage. Never redacted values."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
from dagster_layer.project_folder import Folder
from lab.postgres_lab import PostgresLab
from lab.postgres_server import PostgresServer
from lab.waiting import wait_until

from conduit_dagster.assets import run_reporter
from conduit_dagster.assets.run_reporter import ContentsView
from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.config.parse import parse_text
from conduit_dagster.engine.bound_pipeline import bind_all
from conduit_dagster.engine.compiled_pipeline import CompiledPipeline, compile_program
from conduit_dagster.engine.plugin_loading import project_plugins

TEXT = """
version: "2.2"
pipelines:
  - id: people
    trigger: available-now
    redact: {redact}
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: in.jsonl}}}}
      - {{id: out, type: destination, plugin: {plugin}, settings: {settings}}}
    processors: [{processors}]
"""
DECODE = "{id: decode, plugin: json.decode, settings: {field: .Payload.After}}"
RENAME = '{id: rename, plugin: field.rename, settings: {mapping: ".Payload.After.ssn:number"}}'
LABEL = (
    "{id: label, plugin: field.set, settings: {field: .Payload.After.label, "
    'value: "{{ .Payload.After.name }}/{{ .Payload.After.id }}"}}'
)
SCRIPT = '{id: js, plugin: custom.javascript, settings: {script: "function process(rec) { return rec; }"}}'
LINES = '{"id": 1, "name": "Ana", "ssn": "123-45"}\n{"id": 2, "name": "Bo", "ssn": "678-90"}\n'
JSON = "{path: out.jsonl, sdk.record.format: payload/json}"


def _compiled(
    root: Path, plugin: str = "file", settings: str = JSON, processors: str = DECODE, redact: str = "[]"
) -> CompiledPipeline:
    text = TEXT.format(plugin=plugin, settings=settings, processors=processors, redact=redact)
    parsed = parse_text(text, str(root / "people.yaml"))
    [bound] = bind_all(parsed.pipelines, root, project_plugins(root), False, {})
    return compile_program(bound.program)


def _shown(pipeline: CompiledPipeline) -> dict[str, Any]:
    facts = ContentsView(pipeline, AssetKeys("people")).metadata()["out"]
    preview = facts.get("preview")
    lineage = facts.get("dagster/column_lineage")
    return {
        "count": facts.get("dagster/row_count"),
        "rows": [] if preview is None else [record.data for record in preview.records],
        "lineage": None
        if lineage is None
        else {
            column: [(dep.asset_key.to_user_string(), dep.column_name) for dep in deps]
            for column, deps in lineage.deps_by_column.items()
        },
    }


def test_rows_and_lineage_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text('{"id": 1, "number": {"a": [1, null]}, "label": "Ana/1"}\n' * 7)
    shown = _shown(_compiled(tmp_path, processors=", ".join([DECODE, RENAME, LABEL])))
    assert shown["count"] == 7
    assert shown["rows"] == [{"id": "1", "number": '{"a": [1, null]}', "label": "Ana/1"}] * 5
    assert shown["lineage"] == {
        "id": [("people/in", "id")],
        "number": [("people/in", "ssn")],
        "label": [("people/in", "id"), ("people/in", "name")],
    }


@pytest.mark.parametrize(
    ("processors", "redact", "masked"),
    [
        ([DECODE], "[.Payload.After.ssn]", {"ssn"}),
        ([DECODE], "[.Key.ssn.part]", {"ssn"}),
        ([DECODE, RENAME], "[.Payload.After.ssn]", {"number", "ssn"}),
        ([DECODE, LABEL], "[.Payload.After.name]", {"name", "label"}),
        ([DECODE, LABEL], "[.Payload.After.label]", {"label"}),
        ([DECODE, SCRIPT], "[.Payload.After.ssn]", {"id", "name", "ssn", "number", "label"}),
        ([DECODE], "[.Payload.After]", {"id", "name", "ssn", "number", "label"}),
        ([DECODE], '[".Metadata.owner"]', {"id", "name", "ssn", "number", "label"}),
    ],
)
def test_what_is_made_of_a_redacted_field_is_masked(
    tmp_path: Path, processors: list[str], redact: str, masked: set[str]
) -> None:
    line = '{"id": 1, "name": "Ana", "ssn": "123-45", "number": "123-45", "label": "Ana/1"}\n'
    (tmp_path / "out.jsonl").write_text(line)
    [row] = _shown(_compiled(tmp_path, processors=", ".join(processors), redact=redact))["rows"]
    assert {name for name, value in row.items() if value == "[redacted]"} == masked


def test_whole_records_and_folders_of_parts(tmp_path: Path) -> None:
    whole = '{"operation": "create", "metadata": {}, "key": null, "payload": {"before": null, "after": {"id": %d}}}\n'
    for step in (1, 2):
        folder = tmp_path / "out" / f"step={step}"
        folder.mkdir(parents=True)
        (folder / "part-00000.jsonl").write_text(whole % step)
    (tmp_path / "out" / ".staging").mkdir()
    (tmp_path / "out" / ".staging" / "part-1.jsonl").write_text(whole % 3)
    shown = _shown(_compiled(tmp_path, settings="{path: out/}"))
    assert (shown["count"], shown["rows"]) == (2, [{"id": "2"}])


def test_what_has_no_rows_shows_none(tmp_path: Path) -> None:
    assert _shown(_compiled(tmp_path)) == {"count": 0, "rows": [], "lineage": None}
    assert _shown(_compiled(tmp_path, "log", "{}")) == {"count": None, "rows": [], "lineage": None}
    template = '{path: out.jsonl, sdk.record.format: template, sdk.record.format.options: "{{ .Position }}"}'
    (tmp_path / "out.jsonl").write_text("anything\n")
    assert _shown(_compiled(tmp_path, settings=template))["count"] is None


def test_a_destination_that_fails_or_hangs_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = _compiled(tmp_path)
    destination: Any = pipeline.outputs[0].destination

    def fails() -> int:
        raise RuntimeError("no")

    monkeypatch.setattr(destination, "row_count", fails)
    assert ContentsView(pipeline, AssetKeys("people")).metadata()["out"] == {}
    waits, asked = threading.Event(), list[int]()

    def hangs() -> int:
        asked.append(1)
        waits.wait()
        return 1

    monkeypatch.setattr(destination, "row_count", hangs)
    monkeypatch.setattr(run_reporter, "_CONTENTS_SECONDS", 2.0)
    view = ContentsView(pipeline, AssetKeys("people"))
    assert view.metadata()["out"] == {}
    assert view.metadata(is_last=True)["out"] == {}
    waits.set()
    assert asked == [1]


def test_a_destination_that_was_slow_is_asked_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not asked again in the same run, which may last for a day."""
    pipeline = _compiled(tmp_path)
    destination: Any = pipeline.outputs[0].destination
    waits, answers = threading.Event(), list[int]()

    def slow() -> int:
        waits.wait()
        answers.append(1)
        return 7

    monkeypatch.setattr(destination, "row_count", slow)
    monkeypatch.setattr(run_reporter, "_CONTENTS_SECONDS", 0.01)
    view = ContentsView(pipeline, AssetKeys("people"))

    def has_count(is_last: bool = False) -> bool:
        return "dagster/row_count" in view.metadata(is_last)["out"]

    def looks_slowly() -> None:
        waits.clear()
        before = len(answers)
        assert not has_count(is_last=True)
        waits.set()
        wait_until(lambda: len(answers) > before and view._asked is not None and view._asked.done(), "it answered")

    looks_slowly()
    monkeypatch.setattr(run_reporter, "_CONTENTS_SECONDS", 60.0)
    assert [has_count() for _ in range(3)] == [False, True, True]
    monkeypatch.setattr(run_reporter, "_CONTENTS_SECONDS", 0.01)
    looks_slowly()
    looks_slowly()
    monkeypatch.setattr(run_reporter, "_CONTENTS_SECONDS", 60.0)
    assert [has_count() for _ in range(4)] == [False, False, False, True]
    monkeypatch.setattr(run_reporter, "_CONTENTS_SECONDS", 0.01)
    looks_slowly()
    monkeypatch.setattr(run_reporter, "_CONTENTS_SECONDS", 60.0)
    assert has_count(is_last=True)


def test_what_went_through_metadata_is_masked(tmp_path: Path) -> None:
    keep = '{id: keep, plugin: field.set, settings: {field: .Metadata.tmp, value: "{{ .Payload.After.ssn }}"}}'
    back = '{id: back, plugin: field.set, settings: {field: .Payload.After.who, value: "{{ .Metadata.tmp }}"}}'
    (tmp_path / "out.jsonl").write_text('{"id": 1, "ssn": "123-45", "who": "123-45"}\n')
    pipeline = _compiled(tmp_path, processors=", ".join([DECODE, keep, back]), redact="[.Payload.After.ssn]")
    assert _shown(pipeline)["rows"] == [{"id": "1", "ssn": "[redacted]", "who": "[redacted]"}]


def test_a_join_has_no_lineage_and_shows_nothing_redacted(tmp_path: Path) -> None:
    """A source's fields belong to the one with its name."""
    (tmp_path / "out.jsonl").write_text('{"a": {"id": 1, "ssn": "123-45"}, "b": {"id": 1}}\n')
    text = TEXT.format(plugin="file", settings=JSON, processors=DECODE, redact="[.Payload.After.ssn]")
    second = "      - {id: b, type: source, plugin: file, settings: {path: b.jsonl}}\n"
    text = text.replace("    connectors:\n", f"    fan-in: join\n    connectors:\n{second}").replace("id: in", "id: a")
    [bound] = bind_all(parse_text(text, "p.yaml").pipelines, tmp_path, project_plugins(tmp_path), False, {})
    shown = _shown(compile_program(bound.program))
    assert shown["lineage"] is None
    assert shown["rows"] == [{"a": "[redacted]", "b": "[redacted]"}]


def test_an_error_of_a_processor_about_itself_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out.jsonl").write_text('{"id": 1}\n')
    pipeline = _compiled(tmp_path)

    def fails(field: str) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(pipeline.nodes[0], "made_of", fails)
    assert ContentsView(pipeline, AssetKeys("people")).metadata() == {"out": {}}


@pytest.mark.parametrize("plugin", ["parquet", "delta"])
@pytest.mark.usefixtures("spark")
def test_a_run_shows_them(folder: Folder, plugin: str) -> None:
    (folder.root / "in.jsonl").write_text(LINES)
    settings = '{path: out/, columns: "id:long, name:string, number:string"}'
    processors = ", ".join([DECODE, RENAME])
    folder.write(
        "people.yaml",
        TEXT.format(plugin=plugin, settings=settings, processors=processors, redact="[.Payload.After.ssn]"),
    )
    assert folder.run("people").success
    out = folder.newest("people", "out")
    assert out["dagster/row_count"] == 2
    rows = sorted((dict(record.data) for record in out["preview"].records), key=lambda row: str(row["id"]))
    assert rows == [
        {"id": "1", "name": "Ana", "number": "[redacted]"},
        {"id": "2", "name": "Bo", "number": "[redacted]"},
    ]
    lineage = out["dagster/column_lineage"].deps_by_column
    assert lineage["number"] == [dg.TableColumnDep(dg.AssetKey(["people", "in"]), "ssn")]
    assert "123-45" not in str(out)


def test_a_table_of_postgres(postgres_server: PostgresServer, tmp_path: Path) -> None:
    lab = PostgresLab(postgres_server.create_database(), tmp_path)
    lab.execute("CREATE TABLE t (id int, called text, spare numeric)")
    lab.execute("INSERT INTO t SELECT n, 'x', 1.50 FROM generate_series(1, 12) n")
    settings = f'{{url: "{lab.url}", table: t, mapping: "name:called"}}'
    shown = _shown(_compiled(tmp_path, "postgres", settings, redact="[.Payload.After.name]"))
    assert shown["count"] == 12
    assert len(shown["rows"]) == 5
    assert shown["rows"][0] == {"id": "1", "called": "[redacted]", "spare": "1.50"}
    assert shown["lineage"]["called"] == [("people/in", "name")]
    lab.execute("INSERT INTO t SELECT n FROM generate_series(1, 100000) n")
    assert _shown(_compiled(tmp_path, "postgres", settings))["count"] is None
    with psycopg.connect(lab.url, autocommit=True) as other:
        ours = "application_name LIKE 'conduit:%' AND datname = current_database()"
        open_now = other.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {ours}")
        assert open_now.fetchone() == (0,)
