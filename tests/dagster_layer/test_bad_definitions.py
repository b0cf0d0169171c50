"""Dagster's code location loads whatever a pipeline file contains, with every pipeline of the other files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_layer.project_folder import NUMBERS, TAKES_ALL, Folder
from hypothesis import HealthCheck, given, settings
from lab.mutated_files import files

from conduit_dagster import definitions

MANY = int(os.environ.get("FUZZ_EXAMPLES") or 30)


def _pipeline(name: str, out: str = "out") -> str:
    text = NUMBERS.format(id=name, trigger="{every: 5m}", queue=TAKES_ALL.replace("./dead", f"./{name}-dead"))
    return text.replace("id: out", f"id: {out}").replace("./out.jsonl", f"./{name}-out.jsonl")


def _keys(folder: Folder) -> set[str]:
    defs = folder.definitions
    assert defs.get_repository_def().get_all_jobs()
    return {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}


@given(data=files())
@settings(max_examples=MANY, suppress_health_check=list(HealthCheck))
def test_any_file(folder: Folder, data: bytes) -> None:
    folder.write("untouched.yaml", _pipeline("untouched"))
    (folder.root / "pipelines" / "bad.yaml").write_bytes(data)
    assert {"untouched/in", "untouched/out", "untouched/acks", "conduit/pipeline_files"} <= _keys(folder)


def test_a_broken_file_named_as_a_pipeline_with_a_connector_called_broken(folder: Folder) -> None:
    folder.write("good.yaml", _pipeline("good", out="broken"))
    folder.write("good.yml", "a: [\n")
    assert {"good/broken", "good/broken/file"} <= _keys(folder)


def test_the_check_of_a_broken_pipeline_reads_its_file_again(folder: Folder) -> None:
    """Beside a connector of that name, too."""
    folder.write("good.yaml", _pipeline("good", out="broken"))
    folder.write("good.yml", "a: [\n")
    definitions = folder.definitions
    key = dg.AssetKey(["good", "broken", "file"])
    job = dg.define_asset_job("check", dg.AssetSelection.checks(dg.AssetCheckKey(key, "can_run")))
    resolved = dg.Definitions.merge(definitions, dg.Definitions(jobs=[job])).resolve_job_def("check")

    def passed() -> list[bool]:
        result = resolved.execute_in_process(instance=folder.instance)
        return [event.passed for event in result.get_asset_check_evaluations()]

    assert passed() == [False]
    (folder.root / "pipelines" / "good.yml").unlink()
    assert passed() == [True]


def test_a_pipeline_with_the_key_of_the_files_asset_is_refused_alone(folder: Folder) -> None:
    folder.write("good.yaml", _pipeline("good"))
    folder.write("taken.yaml", _pipeline("conduit", out="pipeline_files"))
    keys = _keys(folder)
    assert {"good/out", "conduit/broken/file", "conduit/pipeline_files"} <= keys
    assert "conduit/in" not in keys


TAKEN = (
    "good--run", "good__replay", "good__replayed", "good__discard_letters",
    "conduit__start", "conduit__stop_pipeline", "conduit__pipeline_files", "conduit__readable_sources",
)  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_a_pipeline_named_as_a_job_or_an_op_is_refused_alone(folder: Folder, name: str) -> None:
    """Dagster loads no code location with two of a name."""
    folder.write("a.yaml", _pipeline("good"))
    folder.write("taken.yaml", _pipeline(name))
    keys = _keys(folder)
    assert {"good/out", f"{name}/broken/file"} <= keys
    assert f"{name}/out" not in keys


def test_a_users_asset_named_as_a_pipeline_needs_an_op_of_another_name(folder: Folder) -> None:
    """As docs/existing-project.md says."""
    folder.write("orders.yaml", _pipeline("orders"))

    @dg.asset
    def orders() -> None: ...

    @dg.multi_asset(name="orders_table", specs=[dg.AssetSpec("orders", deps=[dg.AssetKey(["orders", "out"])])])
    def orders_table() -> None: ...

    def loaded(theirs: dg.AssetsDefinition) -> dg.Definitions:
        merged = dg.Definitions.merge(definitions.load_pipelines(folder.root), dg.Definitions(assets=[theirs]))
        dg.Definitions.validate_loadable(merged)
        return merged

    with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"'orders'.*'__ASSET_JOB' and in job 'orders'"):
        loaded(orders)
    keys = loaded(orders_table).resolve_asset_graph().get_all_asset_keys()
    assert {dg.AssetKey("orders"), dg.AssetKey(["orders", "out"])} <= set(keys)


def test_a_file_whose_name_is_not_text(folder: Folder) -> None:
    folder.write("good.yaml", _pipeline("good"))
    Path(os.fsdecode(os.fsencode(folder.root / "pipelines") + b"/b\xe9.yaml")).write_text("a: [\n")
    assert {"good/out", "conduit/pipeline_files"} <= _keys(folder)


@pytest.mark.parametrize("when", ["defined", "resolved"])
def test_what_dagster_refuses_only_when_all_is_put_together(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Immediately, or when the definitions are resolved: the other pipelines keep jobs and schedules."""
    real = definitions.define_schedules

    def define_schedules(pipelines: list[Any], jobs: dict[str, Any]) -> list[dg.ScheduleDefinition]:
        made = real(pipelines, jobs)
        if all(one.name != "bad__schedule" for one in made):
            return made
        if when == "defined":
            raise ValueError("no schedule for bad")
        elsewhere = dg.ScheduleDefinition(job_name="no_such_job", cron_schedule="* * * * *", name="astray")
        return [*made, elsewhere]

    monkeypatch.setattr(definitions, "define_schedules", define_schedules)
    folder.write("bad.yaml", _pipeline("bad"))
    folder.write("good.yaml", _pipeline("good"))
    defs = folder.definitions
    assert {one.name for one in defs.get_repository_def().schedule_defs} == {"good__schedule"}
    keys = _keys(folder)
    assert {"good/out", "bad/broken/file"} <= keys
    assert "bad/out" not in keys
