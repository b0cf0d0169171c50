"""The check ``readable`` of a source: from a run, and executed on its own."""

from __future__ import annotations

import threading

import dagster as dg
import pytest
from dagster_layer.project_folder import Folder
from pyspark.sql import SparkSession

from conduit_dagster.assets import asset_checks
from conduit_dagster.connectors.file.source import FileSource
from conduit_dagster.resources import spark_resource

KEY = dg.AssetCheckKey(dg.AssetKey(["numbers", "in"]), "readable")


def _newest(folder: Folder) -> dg.AssetCheckEvaluation | None:
    records = folder.instance.event_log_storage.get_asset_check_execution_history(KEY, 1)
    return records[0].evaluation if records else None


def _shown(folder: Folder) -> tuple[bool, str]:
    newest = _newest(folder)
    assert newest is not None
    return newest.passed, str(newest.description)


def _ask(folder: Folder) -> dg.ExecuteInProcessResult:
    """Execute the check on its own, like the button in the UI."""
    job = dg.define_asset_job("check", dg.AssetSelection.checks(KEY))
    definitions = dg.Definitions.merge(folder.definitions, dg.Definitions(jobs=[job]))
    return definitions.resolve_job_def("check").execute_in_process(instance=folder.instance)


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> SparkSession:
        raise AssertionError("this needs no Spark")

    monkeypatch.setattr(spark_resource, "open_session", refuse)


def test_a_source_that_is_missing_fails_with_its_fix_until_a_run_reads_again(
    folder: Folder, spark: SparkSession
) -> None:
    folder.numbers()
    assert _newest(folder) is None
    (folder.root / "in.jsonl").rename(folder.root / "away")
    assert not folder.run().success
    newest = _newest(folder)
    assert newest is not None
    assert (newest.passed, newest.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert newest.metadata["error_code"].value == "file.missing"
    assert "fix: create it" in str(newest.description)
    (folder.root / "away").rename(folder.root / "in.jsonl")
    assert folder.run().success
    assert _shown(folder) == (True, "it was read")


def test_a_run_that_fails_elsewhere_says_nothing_of_a_source_that_it_did_not_read(
    folder: Folder, spark: SparkSession
) -> None:
    folder.numbers()
    assert not folder.run(end_after="soon").success
    assert _newest(folder) is None


@pytest.mark.usefixtures("no_spark")
def test_by_itself_it_asks_the_source_and_moves_nothing(folder: Folder) -> None:
    folder.numbers()
    assert _ask(folder).success
    assert _shown(folder) == (True, "it reports how much waits")
    (folder.root / "in.jsonl").unlink()
    assert _ask(folder).success, "a check that fails is no failure of its run"
    passed, text = _shown(folder)
    assert not passed and "fix: create it" in text
    folder.write("numbers.yaml", "a: [\n")
    definitions = folder.definitions
    assert KEY not in definitions.resolve_asset_graph().asset_check_keys


@pytest.mark.usefixtures("no_spark")
def test_by_itself_it_waits_only_so_long_for_a_source(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.numbers()
    released = threading.Event()
    monkeypatch.setattr(FileSource, "lag", lambda *_: released.wait(60))
    monkeypatch.setattr(asset_checks, "BY_HAND", 0.2)
    try:
        assert _ask(folder).success
        assert _shown(folder) == (False, "it hangs when asked how much waits: no answer within 0.2 s")
    finally:
        released.set()


@pytest.mark.usefixtures("no_spark")
def test_by_itself_it_says_that_the_pipeline_broke_meanwhile(folder: Folder) -> None:
    folder.numbers()
    job = dg.define_asset_job("check", dg.AssetSelection.checks(KEY))
    resolved = dg.Definitions.merge(folder.definitions, dg.Definitions(jobs=[job])).resolve_job_def("check")
    folder.write("numbers.yaml", "a: [\n")
    assert resolved.execute_in_process(instance=folder.instance).success
    passed, text = _shown(folder)
    assert not passed and "conduit-dagster validate" in text


def test_by_itself_it_knows_how_far_a_logged_source_was_read(folder: Folder, spark: SparkSession) -> None:
    folder.numbers(trigger="available-now\n    delivery: {log: records}")
    assert folder.run().success
    assert _ask(folder).success
    assert _shown(folder) == (True, "it reports how much waits")


@pytest.mark.usefixtures("no_spark")
def test_by_itself_it_warns_of_a_source_that_cannot_tell(folder: Folder) -> None:
    folder.numbers()
    path = folder.root / "pipelines" / "numbers.yaml"
    settings = "plugin: generator\n        settings: {format.type: structured, format.options.n: int}"
    path.write_text(path.read_text().replace("plugin: builtin:file\n        settings: {path: ./in.jsonl}", settings))
    assert _ask(folder).success
    newest = _newest(folder)
    assert newest is not None
    assert (newest.passed, newest.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "only a run finds out" in str(newest.description)
