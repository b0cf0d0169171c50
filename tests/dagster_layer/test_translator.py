"""Pipelines beside an existing Dagster project: their definitions merged with it, their assets translated."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_layer.project_folder import Folder

import conduit_dagster
from conduit_dagster import PipelineAsset, PipelineTranslator, load_pipelines
from conduit_dagster.recovery.errors import FatalError

CHAINED = """
version: "2.2"
pipelines:
  - id: later
    trigger: available-now
    connectors:
      - {id: from, type: source, plugin: pipeline, settings: {pipeline: numbers, connector: out}}
      - {id: to, type: destination, plugin: "builtin:file", settings: {path: ./later.jsonl}}
"""


class Ours(PipelineTranslator):
    """As in a team whose keys begin with their layer."""

    def get_asset_spec(self, data: PipelineAsset) -> dg.AssetSpec:
        spec = super().get_asset_spec(data)
        key = dg.AssetKey("numbers") if data.role == "destination" else spec.key.with_prefix("raw")
        return spec.replace_attributes(
            key=key,
            group_name="ingestion",
            owners=["team:data"],
            automation_condition=dg.AutomationCondition.eager() if data.role == "destination" else None,
        ).merge_attributes(tags={"role": data.role, "plugin": data.connector.plugin[-4:] if data.connector else "none"})


def _spec(definitions: dg.Definitions, *key: str) -> dg.AssetSpec:
    found = {spec.key: spec for spec in definitions.resolve_all_asset_specs()}
    return found[dg.AssetKey(list(key))]


def _other(folder: Folder, name: str) -> str:
    """The pipeline ``numbers`` under another name, with its own outputs."""
    text = (folder.root / "pipelines" / "numbers.yaml").read_text()
    return text.replace("numbers", name).replace("./out.", "./other.").replace("./dead.", "./other-dead.")


def test_keys_and_attributes_are_translated_and_dependencies_follow(folder: Folder) -> None:
    folder.numbers()
    definitions = load_pipelines(folder.root, translator=Ours())
    keys = {spec.key.to_user_string() for spec in definitions.resolve_all_asset_specs()}
    assert keys == {
        *("raw/numbers/in", "numbers", "raw/numbers/dead_letters", "raw/numbers/acks"),
        *("raw/numbers/dead_letters/replayed", "conduit/pipeline_files"),
    }
    out = _spec(definitions, "numbers")
    assert {dep.asset_key.to_user_string() for dep in out.deps} == {"raw/numbers/in"}
    assert (out.group_name, out.owners, out.tags["role"], out.tags["plugin"]) == (
        *("ingestion", ["team:data"]),
        *("destination", "file"),
    )
    assert out.automation_condition is not None
    acks = _spec(definitions, "raw", "numbers", "acks")
    assert {dep.asset_key.to_user_string() for dep in acks.deps} == {"numbers", "raw/numbers/dead_letters"}
    checks = {check.asset_key.to_user_string() for check in definitions.resolve_asset_graph().asset_check_keys}
    ours = {f"raw/numbers/{name}" for name in ("in", "acks", "dead_letters")}
    assert checks == {*ours, "conduit/pipeline_files"}


@pytest.mark.usefixtures("spark")
def test_a_run_writes_to_the_translated_assets(folder: Folder) -> None:
    """What a run logs meanwhile and at its end, its checks, a replay, and what a sensor reports of a restart."""
    folder.numbers()
    definitions = load_pipelines(folder.root, translator=Ours())
    result = definitions.resolve_job_def("numbers").execute_in_process(instance=folder.instance)
    assert result.success
    assert folder.newest("numbers")["records_delivered"] == 40
    assert folder.delivered == folder.passed(range(100))
    assert folder.newest("raw", "numbers", "in")["records_read"] == 100
    assert folder.newest("raw", "numbers", "acks")["records_acked"] == 90
    assert {event.asset_key.path[0] for event in result.get_asset_check_evaluations()} == {"raw"}
    again = definitions.resolve_job_def("numbers__replay")
    replay = again.execute_in_process(instance=folder.instance, raise_on_error=False)
    assert not replay.success  # all letters fail again
    assert folder.newest("raw", "numbers", "dead_letters", "replayed")["letters"] == 10
    untranslated = {key for key in folder.instance.all_asset_keys() if key.path[0] == "numbers" and len(key.path) > 1}
    assert not untranslated


class Automated(PipelineTranslator):
    """As the page for existing projects has it."""

    def get_asset_spec(self, data: PipelineAsset) -> dg.AssetSpec:
        spec = super().get_asset_spec(data)
        if data.role in ("source", "destination"):
            spec = spec.merge_attributes(deps=["landing"])
        if data.role == "destination":
            source = dg.AssetSelection.assets(dg.AssetKey(["numbers", "in"]))
            return spec.replace_attributes(automation_condition=dg.AutomationCondition.eager().ignore(source))
        return spec


def test_an_automated_pipeline_is_requested_whole_once_its_upstream_is_there(folder: Folder) -> None:
    """Also for the first time, when its source has no materialisation yet."""
    folder.numbers()
    landing = dg.Definitions(assets=[dg.asset(name="landing")(lambda: None)])
    merged = dg.Definitions.merge(load_pipelines(folder.root, translator=Automated()), landing)
    before = dg.evaluate_automation_conditions(merged, folder.instance)
    assert before.total_requested == 0
    folder.instance.report_runless_asset_event(dg.AssetMaterialization("landing"))
    after = dg.evaluate_automation_conditions(merged, folder.instance, cursor=before.cursor)
    requested = {key.path[-1] for key in merged.resolve_all_asset_keys() if after.get_num_requested(key)}
    assert requested == {"out", "dead_letters", "acks"}


class Nightly(PipelineTranslator):
    """Asked for at midnight, whether the source is left out or not."""

    def __init__(self, *ignored: str) -> None:
        self._ignored = dg.AssetSelection.assets(*(dg.AssetKey(["numbers", name]) for name in ignored))

    def get_asset_spec(self, data: PipelineAsset) -> dg.AssetSpec:
        spec = super().get_asset_spec(data)
        condition = dg.AutomationCondition.on_cron("0 0 * * *").ignore(self._ignored)
        return spec.replace_attributes(automation_condition=condition if data.role == "destination" else None)


@pytest.mark.parametrize(("ignored", "nights"), [(["in"], 4), ([], 0)], ids=["without its source", "with it"])
def test_a_pipeline_is_asked_for_each_night_where_its_source_is_left_out(
    folder: Folder, ignored: list[str], nights: int
) -> None:
    """Nothing but the pipeline itself updates its source, as the page for existing projects says."""
    folder.numbers()
    definitions = load_pipelines(folder.root, translator=Nightly(*ignored))
    at, cursor, asked = datetime(2026, 11, 24, 23, tzinfo=UTC), None, 0
    for _ in range(8):
        result = dg.evaluate_automation_conditions(definitions, folder.instance, cursor=cursor, evaluation_time=at)
        asked, cursor, at = asked + bool(result.total_requested), result.cursor, at + timedelta(hours=12)
    assert asked == nights


def test_lineage_between_pipelines_follows(folder: Folder) -> None:
    folder.numbers()
    folder.write("later.yaml", CHAINED)

    class Prefixed(PipelineTranslator):
        def get_asset_spec(self, data: PipelineAsset) -> dg.AssetSpec:
            return data.spec.replace_attributes(key=data.spec.key.with_prefix("a"))

    definitions = load_pipelines(folder.root, translator=Prefixed())
    assert [dep.asset_key.path for dep in _spec(definitions, "a", "later", "from").deps] == [["a", "numbers", "out"]]


def test_a_translator_that_fails_keeps_one_pipeline_from_loading(folder: Folder) -> None:
    folder.numbers()
    folder.write("other.yaml", _other(folder, "other"))

    class Picky(PipelineTranslator):
        def get_asset_spec(self, data: PipelineAsset) -> dg.AssetSpec:
            if data.pipeline.id == "other" and data.role == "acks":
                raise LookupError("no team has these")
            return data.spec

    definitions = load_pipelines(folder.root, translator=Picky())
    assert _spec(definitions, "numbers", "out")
    broken = _spec(definitions, "other", "broken", "file")
    assert "Picky.get_asset_spec failed for other/acks: no team has these" in (broken.description or "")


@pytest.mark.parametrize("role", ["source", "destination"])
def test_a_key_for_two_assets_is_the_translators_mistake(folder: Folder, role: str) -> None:
    """Two pipelines' sources, and two assets that one pipeline writes: another id would not help."""
    folder.numbers()
    folder.write("other.yaml", _other(folder, "other"))

    class Same(PipelineTranslator):
        def get_asset_spec(self, data: PipelineAsset) -> dg.AssetSpec:
            if data.pipeline.id == "numbers" or data.role not in (role, "acks"):
                return data.spec
            # the source has the key of another pipeline's, the acks that of the destination
            return data.spec.replace_attributes(key=["numbers", "in"] if data.role == "source" else "same")

    broken = _spec(load_pipelines(folder.root, translator=Same()), "other", "broken", "file")
    assert "fix: have the translator give each asset a key of its own" in (broken.description or "")


class Own(dg.ConfigurableResource[Any]):
    """A session of the user's own, and how often it was requested."""

    asked: int = 0

    @property
    def spark_session(self) -> Any:
        from pyspark.sql import SparkSession

        _asked.append("session")
        return SparkSession.getActiveSession()


_asked: list[str] = []


@pytest.mark.usefixtures("spark")
def test_merged_with_definitions_that_use_the_same_names(folder: Folder) -> None:
    """A user's executor, and resources named spark and state."""
    folder.numbers()

    @dg.asset(deps=[dg.AssetKey(["numbers", "out"])], required_resource_keys={"spark", "state"})
    def report() -> None:
        assert (folder.root / "out.jsonl").exists()

    theirs = dg.Definitions(
        assets=[report],
        jobs=[
            dg.define_asset_job("all", selection=dg.AssetSelection.groups("numbers") | dg.AssetSelection.assets(report))
        ],
        resources={"spark": dg.ResourceDefinition.hardcoded_resource(1), "state": Own()},
        executor=dg.in_process_executor,
    )
    _asked.clear()
    merged = dg.Definitions.merge(theirs, load_pipelines(folder.root, spark=Own()))
    assert merged.resolve_job_def("all").execute_in_process(instance=folder.instance).success
    assert _asked
    assert folder.delivered == folder.passed(range(100))
    assert {sensor.name for sensor in merged.sensors or []} >= {"conduit_recovery", "conduit_lifecycle"}


def test_strict_refuses_what_is_broken(folder: Folder) -> None:
    folder.numbers()
    folder.write("bad.yaml", "version: '2.2'\npipelines: [{id: bad, connectors: 3}]\n")
    assert _spec(load_pipelines(folder.root), "bad", "broken", "file")
    with pytest.raises(FatalError) as refused:
        load_pipelines(folder.root, strict=True)
    assert refused.value.code == "pipeline.invalid"
    assert "bad.yaml:2:" in refused.value.message


def test_what_dagster_knows_of_a_data_set(folder: Folder, tmp_path: Path) -> None:
    folder.numbers()
    table = 'plugin: postgres\n        settings: {url: "postgresql://me:secret@db.example:5433/shop", table: people}'
    file = "- {id: out, type: destination, plugin: builtin:file, settings: {path: ./other.jsonl}}"
    folder.write(
        "table.yaml", _other(folder, "table").replace(file, f"- id: out\n        type: destination\n        {table}")
    )
    definitions = load_pipelines(folder.root)
    assert _spec(definitions, "numbers", "in").metadata["dagster/uri"] == f"file://{tmp_path}/in.jsonl"
    assert _spec(definitions, "numbers", "out").metadata["dagster/uri"] == f"file://{tmp_path}/out.jsonl"
    out = _spec(definitions, "table", "out").metadata
    assert out["dagster/table_name"] == "shop.public.people"
    assert out["dagster/uri"] == "postgres://db.example:5433/shop/public/people"
    assert "dagster/column_schema" not in out
    lake = 'plugin: delta\n        settings: {path: ./lake, columns: "n:long, price:decimal(10,2)"}'
    text = _other(folder, "lake").replace(file, f"- id: out\n        type: destination\n        {lake}")
    folder.write("lake.yaml", text.replace("other-dead", "lake-dead"))
    schema = _spec(load_pipelines(folder.root), "lake", "out").metadata["dagster/column_schema"]
    assert [(column.name, column.type) for column in schema.columns] == [("n", "long"), ("price", "decimal(10,2)")]


def _windows(folder: Folder, trigger: str, max_lag: str | None = None) -> list[float | None] | None:
    """When the acks warn and when they fail, in minutes."""
    folder.numbers(trigger=trigger if max_lag is None else f"{trigger}\n    delivery: {{max-lag: {max_lag}}}")
    policy: Any = _spec(load_pipelines(folder.root), "numbers", "acks").freshness_policy
    if policy is None:
        return None
    windows = (policy.warn_window, policy.fail_window)
    return [None if window is None else window.to_timedelta().total_seconds() / 60 for window in windows]


@pytest.mark.parametrize(
    ("trigger", "minutes"),
    [
        ("available-now", None),
        ("continuous", None),
        ("{every: 10m}", [15, 20]),
        ('{cron: "0 4 * * *"}', [2_160, 2_880]),
    ],
)
def test_timed_pipelines_have_a_freshness_policy(folder: Folder, trigger: str, minutes: list[float] | None) -> None:
    assert _windows(folder, trigger) == minutes


@pytest.mark.parametrize(
    ("trigger", "max_lag", "minutes"),
    [
        ("available-now", "10m", None),
        ("{every: 10m}", "5m", [10, 15]),
        ('{cron: "0 4 * * *"}', "2d", [1_440, 4_320]),
        ("{every: 1s}", "1ms", [1, 1 + 1 / 60]),
        ("continuous", "10m", [10, 20]),
        ("continuous", "45s", [1, 1.5]),
        ("continuous", "30s", [None, 1]),
        ("continuous", "1ms", [None, 1]),
        ("continuous", "999999d", [999_999 * 1_440, 2 * 999_999 * 1_440]),
    ],
)
def test_the_freshness_policy_follows_the_max_lag(
    folder: Folder, trigger: str, max_lag: str, minutes: list[float | None] | None
) -> None:
    """Dagster's shortest window is a minute, and it refuses two equal ones."""
    assert _windows(folder, trigger, max_lag) == (None if minutes is None else pytest.approx(minutes))


def test_the_package_imports_dagster_only_when_it_is_asked_for() -> None:
    assert {"load_pipelines", "PipelinesComponent"} <= set(dir(conduit_dagster))
    with pytest.raises(AttributeError):
        _ = conduit_dagster.nothing  # pyright: ignore[reportAttributeAccessIssue]


class Bare(PipelineTranslator):
    """Keys of its own, and no metadata."""

    def get_asset_spec(self, data: PipelineAsset) -> dg.AssetSpec:
        spec = super().get_asset_spec(data)
        return spec.replace_attributes(key=spec.key.with_prefix("raw"), metadata={})


def test_operator_jobs_and_the_checks_of_sources_follow_the_keys(folder: Folder) -> None:
    folder.numbers()
    key = dg.AssetCheckKey(dg.AssetKey(["raw", "numbers", "in"]), "readable")
    check = dg.define_asset_job("check", dg.AssetSelection.checks(key))
    definitions = dg.Definitions.merge(load_pipelines(folder.root, translator=Bare()), dg.Definitions(jobs=[check]))
    (asked,) = (
        definitions.resolve_job_def("check").execute_in_process(instance=folder.instance).get_asset_check_evaluations()
    )
    assert (asked.asset_check_key, asked.passed) == (key, True)
    start = definitions.resolve_job_def("conduit__start")
    form = {"ops": {"conduit__start_pipeline": {"config": {"pipeline": "numbers"}}}}
    assert start.execute_in_process(form, folder.instance).success
    acks = dg.AssetKey(["raw", "numbers", "acks"])
    assert len(folder.instance.fetch_observations(acks, limit=5).records) == 1
