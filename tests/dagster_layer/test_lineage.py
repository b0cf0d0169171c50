"""OpenLineage events of runs, received by the client's own file transport."""

from __future__ import annotations

import json
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_layer.project_folder import NUMBERS, Folder
from structlog.testing import capture_logs

from conduit_dagster.config.project import Project
from conduit_dagster.connectors.file.destination import FileDestination
from conduit_dagster.engine.bound_pipeline import open_catalogue
from conduit_dagster.engine.report import RunProgress, RunResult
from conduit_dagster.engine.run_status import RunOrigin
from conduit_dagster.lineage.openlineage import listener_of
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.policy import PipelineStatus

Event = dict[str, Any]


@pytest.fixture
def events(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that events are appended to, one per line."""
    (folder.root / "conduit.yaml").write_text("lineage: {openlineage: true, namespace: shop}\n")
    path = folder.root / "events.jsonl"
    for name, value in (("TYPE", "file"), ("LOG_FILE_PATH", str(path)), ("APPEND", "true")):
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    return path


def _read(path: Path) -> list[Event]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _send_to(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Events go to a port of this machine, and are sent once."""
    settings = {"TYPE": "http", "URL": f"http://127.0.0.1:{port}", "TIMEOUT": "60", "RETRY": '{"total": 0}'}
    for name, value in settings.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)


def _outputs(event: Event) -> dict[str, int]:
    return {one["name"]: one["outputFacets"]["outputStatistics"]["rowCount"] for one in event["outputs"]}


@pytest.mark.usefixtures("spark")
def test_a_run_tells_what_it_read_and_wrote(folder: Folder, events: Path) -> None:
    folder.numbers()
    result = folder.run()
    assert result.success
    start, end = _read(events)
    assert [event["eventType"] for event in (start, end)] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == end["run"]["runId"] == result.dagster_run.run_id
    assert (start["job"]["namespace"], start["job"]["name"]) == ("shop", "numbers")
    assert start["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    [source] = end["inputs"]
    assert (source["namespace"], source["name"]) == ("file", str(folder.root / "in.jsonl"))
    assert source["inputFacets"]["inputStatistics"]["rowCount"] == 100
    assert _outputs(end) == {str(folder.root / "out.jsonl"): 40}
    assert folder.delivered == folder.passed(range(100))
    folder.append(range(100, 110))
    assert folder.run().success
    assert _outputs(_read(events)[-1]) == {str(folder.root / "out.jsonl"): 4}
    assert folder.delivered == folder.passed(range(110))


@pytest.mark.usefixtures("spark")
def test_pipelines_of_one_dagster_run_have_runs_of_their_own(folder: Folder, events: Path) -> None:
    """Collectors know a run by its id: with one id for both, the second pipeline's events would change the first."""
    folder.numbers()
    folder.write("more.yaml", NUMBERS.format(id="more", trigger="available-now", queue="{}").replace("out.", "more."))
    both = dg.define_asset_job("both", dg.AssetSelection.all(), executor_def=dg.in_process_executor)
    definitions = dg.Definitions.merge(folder.definitions, dg.Definitions(jobs=[both]))
    result = definitions.resolve_job_def("both").execute_in_process(instance=folder.instance, raise_on_error=False)
    runs = {event["job"]["name"]: event["run"] for event in _read(events)}
    assert runs.keys() == {"numbers", "more"} and len({run["runId"] for run in runs.values()}) == 2
    assert len({event["run"]["runId"] for event in _read(events)}) == 2
    for run in runs.values():
        parent = run["facets"]["parent"]
        assert (parent["run"]["runId"], parent["job"]["name"]) == (result.dagster_run.run_id, "both")


@pytest.mark.usefixtures("spark")
def test_a_run_that_fails_tells_why(folder: Folder, events: Path) -> None:
    folder.numbers(queue="{window-size: 1}")
    assert not folder.run().success
    end = _read(events)[-1]
    assert end["eventType"] == "FAIL"
    assert end["run"]["facets"]["errorMessage"]["message"].startswith("processor.error: a three")


@pytest.mark.usefixtures("spark", "events")
def test_a_collector_that_is_away_harms_nothing(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    _send_to(monkeypatch, 9)
    folder.numbers()
    with capture_logs() as logged:
        assert folder.run().success
    assert [line["event"] for line in logged if line["log_level"] == "warning"] == ["a lineage event was not sent"] * 2
    assert folder.delivered == folder.passed(range(100))


@pytest.mark.usefixtures("spark", "events")
def test_a_collector_that_never_answers_is_not_waited_for(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the run nor by its process, which ends without waiting for daemon threads."""
    monkeypatch.setattr("conduit_dagster.lineage.openlineage._PATIENCE", 0.1)
    folder.numbers()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        _send_to(monkeypatch, silent.getsockname()[1])
        with capture_logs() as logged:
            assert folder.run().success
        assert [line["event"] for line in logged if line["log_level"] == "warning"] == [
            "a lineage event was not taken in time"
        ]
        waiting = [thread for thread in threading.enumerate() if thread.name == "openlineage"]
        assert waiting and all(thread.daemon for thread in waiting)
    for thread in waiting:
        thread.join()
    assert folder.delivered == folder.passed(range(100))


@pytest.mark.usefixtures("spark", "events")
def test_dead_letters_are_handled_without_the_client(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only runs send events."""
    folder.numbers()
    assert folder.run().success
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    discard = folder.definitions.resolve_job_def("numbers__discard")
    form = {"ops": {"numbers__discard_letters": {"config": {"note": "known"}}}}
    assert discard.execute_in_process(form, folder.instance).success
    assert folder.newest("numbers", "dead_letters")["open"] == 0


@pytest.mark.usefixtures("spark")
def test_by_default_nothing_is_sent(folder: Folder, events: Path) -> None:
    (folder.root / "conduit.yaml").unlink()
    folder.numbers()
    assert folder.run().success
    assert not events.exists()


@pytest.mark.usefixtures("events")
def test_a_missing_client_is_one_clear_error(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    with pytest.raises(FatalError) as refused:
        listener_of(Project.find(folder.root, {}))
    assert refused.value.code == "lineage.not_installed"
    assert "conduit-dagster[lineage]" in (refused.value.fix or "")


@pytest.mark.usefixtures("events")
def test_a_configuration_that_the_client_refuses_is_one_clear_error(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TYPE", "LOG_FILE_PATH", "APPEND"):
        monkeypatch.delenv(f"OPENLINEAGE__TRANSPORT__{name}")
    monkeypatch.setenv("OPENLINEAGE_URL", "marquez:5000")
    with pytest.raises(FatalError) as refused:
        listener_of(Project.find(folder.root, {}))
    assert refused.value.code == "lineage.config_invalid"
    assert "marquez:5000" in refused.value.message
    assert "OPENLINEAGE_URL" in (refused.value.fix or "")


def test_a_connector_that_can_not_name_its_data_set_is_left_out(
    folder: Folder, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: FileDestination) -> None:
        raise RuntimeError("no name today")

    monkeypatch.setattr(FileDestination, "dataset", property(fail))
    folder.numbers()
    project = Project.find(folder.root, {})
    [bound] = open_catalogue(project).bound
    with capture_logs() as logged:
        ended = listener_of(project)(bound, RunOrigin(), RunProgress())
        ended(RunResult(bound.id, PipelineStatus.STOPPED, "system", None, RunProgress(), drained=True))
    start, end = _read(events)
    assert (len(start["inputs"]), end["outputs"]) == (1, [])
    assert {(line["node"], line["cause"]) for line in logged} == {("numbers:out", "no name today")}
