"""A user's own assets downstream of a destination: they run after it in the same run, and once it materialised."""

from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
import pytest
from dagster_layer.project_folder import Folder

pytestmark = pytest.mark.usefixtures("spark")

READER = """
version: "2.2"
pipelines:
  - id: a-reader
    trigger: available-now
    connectors:
      - {{id: in, type: source, plugin: {plugin}, settings: {settings}}}
      - {{id: out, type: destination, plugin: file, settings: {{path: ./copy.jsonl}}}}
"""
OUT, DEAD = dg.AssetKey(["numbers", "out"]), dg.AssetKey(["numbers", "dead_letters"])
DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01")
Lines = Callable[[], int]


def _asset(lines: Lines) -> dg.AssetsDefinition:
    @dg.asset(deps=[OUT, DEAD])
    def report() -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(metadata={"lines": lines()})

    return report


def _multi_asset(lines: Lines) -> dg.AssetsDefinition:
    """As in a dbt project: models that depend on each other, some of which may be selected."""
    report = dg.AssetSpec("report", deps=[OUT], skippable=True)
    model = dg.AssetSpec("model", deps=[report], skippable=True)

    @dg.multi_asset(specs=[report, model], can_subset=True)
    def models(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
        for key in sorted(context.selected_asset_keys, reverse=True):
            yield dg.MaterializeResult(asset_key=key, metadata={"lines": lines()})

    return models


def _partitioned(lines: Lines) -> dg.AssetsDefinition:
    @dg.asset(deps=[OUT], partitions_def=DAYS)
    def report(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
        assert context.partition_key == "2026-01-02"
        return dg.MaterializeResult(metadata={"lines": lines()})

    return report


def _eager(lines: Lines) -> dg.AssetsDefinition:
    @dg.asset(deps=[OUT], automation_condition=dg.AutomationCondition.eager())
    def report() -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(metadata={"lines": lines()})

    return report


def _with(folder: Folder, downstream: dg.AssetsDefinition, selection: dg.AssetSelection) -> dg.Definitions:
    job = dg.define_asset_job("both", selection=selection, executor_def=dg.in_process_executor)
    return dg.Definitions.merge(folder.definitions, dg.Definitions(assets=[downstream], jobs=[job]))


def _lines(folder: Folder) -> Lines:
    return lambda: len((folder.root / "out.jsonl").read_text().splitlines())


@pytest.mark.parametrize("form", [_asset, _multi_asset, _partitioned, _eager])
def test_an_asset_behind_a_destination_runs_after_it_in_one_run(
    folder: Folder, form: Callable[[Lines], dg.AssetsDefinition]
) -> None:
    folder.numbers()
    selection = dg.AssetSelection.groups("numbers") | dg.AssetSelection.assets("report")
    job = _with(folder, form(_lines(folder)), selection).resolve_job_def("both")
    day = "2026-01-02" if form is _partitioned else None
    assert job.execute_in_process(instance=folder.instance, partition_key=day).success
    assert folder.newest("report")["lines"] == 40
    assert folder.newest("numbers", "out")["records_delivered"] == 40


def test_nothing_runs_behind_a_pipeline_that_failed(folder: Folder) -> None:
    folder.numbers(queue="{window-size: 1}")
    selection = dg.AssetSelection.groups("numbers") | dg.AssetSelection.assets("report")
    job = _with(folder, _asset(_lines(folder)), selection).resolve_job_def("both")
    assert not job.execute_in_process(instance=folder.instance, raise_on_error=False).success
    assert folder.instance.get_latest_materialization_event(dg.AssetKey("report")) is None


def test_automation_asks_for_what_is_behind_a_destination(folder: Folder) -> None:
    """Also while the pipeline keeps running: its materialisations are events like any other."""
    folder.numbers()
    definitions = _with(folder, _eager(_lines(folder)), dg.AssetSelection.assets("report"))
    first = dg.evaluate_automation_conditions(definitions, folder.instance)
    assert first.total_requested == 0
    assert folder.run().success
    second = dg.evaluate_automation_conditions(definitions, folder.instance, cursor=first.cursor)
    assert second.get_num_requested(dg.AssetKey("report")) == 1


def test_automation_asks_for_nothing_behind_a_run_that_moved_nothing(folder: Folder) -> None:
    """As the next tick of a timed pipeline, which shows by its acks that it came."""
    folder.numbers()
    definitions = _with(folder, _eager(_lines(folder)), dg.AssetSelection.assets("report"))
    asked, cursor = list[int](), dg.evaluate_automation_conditions(definitions, folder.instance).cursor
    for count in (0, 0, 10):
        folder.append(range(100, 100 + count))
        assert folder.run().success
        found = dg.evaluate_automation_conditions(definitions, folder.instance, cursor=cursor)
        asked.append(found.get_num_requested(dg.AssetKey("report")))
        cursor = found.cursor
    assert asked == [1, 0, 1]
    acks = folder.instance.fetch_materializations(dg.AssetKey(["numbers", "acks"]), limit=10).records
    assert len(acks) >= 3


def test_what_a_killed_run_moved_and_did_not_tell_is_told_by_the_next_one(folder: Folder) -> None:
    folder.numbers()
    with dg.DagsterInstance.ephemeral() as lost:
        assert folder.definitions.resolve_job_def("numbers").execute_in_process(instance=lost).success
    assert folder.run().success
    shown = folder.newest("numbers", "out")
    assert (shown["records_delivered"], shown["records_delivered_all_runs"]) == (0, 40)


@pytest.mark.parametrize(
    ("plugin", "settings", "records"),
    [("file", "{path: ./out.jsonl}", 40), ("pipeline", "{pipeline: numbers}", 100)],
)
def test_a_pipeline_that_reads_another_one_runs_after_it_in_one_run(
    folder: Folder, plugin: str, settings: str, records: int
) -> None:
    """Whatever their names: what it reads is upstream of its source, which no run writes."""
    folder.numbers()
    numbers = folder.root / "pipelines" / "numbers.yaml"
    numbers.write_text(numbers.read_text() + "    delivery: {log: records}\n")
    folder.write("reader.yaml", READER.format(plugin=plugin, settings=settings))
    selection = [
        dg.AssetKey([name, one]) for name in ("a-reader", "numbers") for one in ("out", "dead_letters", "acks")
    ]
    job = folder.definitions.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=folder.instance, asset_selection=selection).success
    assert len((folder.root / "copy.jsonl").read_text().splitlines()) == records


def _ops(folder: Folder, selection: dg.AssetSelection) -> set[str]:
    @dg.asset_check(asset="report")
    def is_new() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    definitions = dg.Definitions.merge(
        _with(folder, _asset(_lines(folder)), selection), dg.Definitions(asset_checks=[is_new])
    )
    return {node.name for node in definitions.resolve_job_def("both").all_node_defs}


def test_selections_of_a_users_job_that_take_a_pipeline_whole_or_leave_it_out(folder: Folder) -> None:
    """Those that docs/existing-project.md has in place of what Dagster refuses."""
    folder.numbers()
    some, ours = dg.AssetSelection, dg.AssetSelection.groups("numbers", "conduit")
    with pytest.raises(dg.DagsterInvalidDefinitionError):
        _ops(folder, some.assets("report").upstream())
    behind = some.assets("report").upstream().required_multi_asset_neighbors()
    assert _ops(folder, behind) >= {"numbers__run", "report"}
    checks = _ops(folder, some.all_asset_checks() - ours)
    assert "report_is_new" in checks
    assert "numbers__run" not in checks
    unchecked = _ops(folder, (some.all() - ours).without_checks() | ours)
    assert unchecked >= {"numbers__run", "report"}
    assert "report_is_new" not in unchecked
