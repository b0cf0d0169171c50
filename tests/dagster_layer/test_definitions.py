"""A folder of pipeline files becomes assets and jobs; a broken file is shown, and affects nothing else."""

from __future__ import annotations

import re

import dagster as dg
import pytest
from dagster_layer.project_folder import NUMBERS, TAKES_ALL, Folder

from conduit_dagster.assets.names import asset_key, job_name, kind, short
from conduit_dagster.assets.pipeline_specs import find_links
from conduit_dagster.config.project import Project
from conduit_dagster.connectors.file.destination import FileDestination
from conduit_dagster.engine.bound_pipeline import open_catalogue

COPY = """
version: "2.2"
pipelines:
  - id: {id}
    description: What it is for.
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: {source}}}}}
      - {{id: out, type: destination, plugin: file, settings: {{path: {target}}}}}
"""


def _parents(folder: Folder, *key: str) -> set[str]:
    graph = folder.definitions.resolve_asset_graph()
    return {parent.to_user_string() for parent in graph.get(dg.AssetKey(list(key))).parent_keys}


def _keys(folder: Folder) -> set[str]:
    return {key.to_user_string() for key in folder.definitions.resolve_asset_graph().get_all_asset_keys()}


def _spec(folder: Folder, *key: str) -> dg.AssetSpec:
    wanted = dg.AssetKey(list(key))
    return next(spec for spec in folder.definitions.resolve_all_asset_specs() if spec.key == wanted)


def test_sources_before_destinations_before_dead_letters_and_acks(folder: Folder) -> None:
    folder.numbers()
    assert _parents(folder, "numbers", "in") == set()
    assert _parents(folder, "numbers", "out") == {"numbers/in"}
    assert _parents(folder, "numbers", "dead_letters") == {"numbers/out"}
    assert _parents(folder, "numbers", "acks") == {"numbers/out", "numbers/dead_letters"}


def test_one_job_per_pipeline_with_its_own_retries_off(folder: Folder) -> None:
    folder.numbers()
    job = folder.definitions.resolve_job_def("numbers")
    assert job.tags["dagster/max_retries"] == "0"
    assert job.tags["conduit/pipeline"] == "numbers"
    assert job.executor_def is dg.in_process_executor


def test_a_pipeline_named_as_dagsters_job_of_all_assets_has_a_job_of_its_own(folder: Folder) -> None:
    """A sensor that started it would have started all pipelines."""
    folder.write("all.yaml", NUMBERS.format(id="__ASSET_JOB", trigger="continuous", queue=TAKES_ALL))
    job = folder.definitions.resolve_job_def("__ASSET_JOB_")
    assert job.tags["conduit/pipeline"] == "__ASSET_JOB"


def test_the_owners_of_its_assets_are_those_of_the_file(folder: Folder) -> None:
    folder.numbers()
    names = ("in", "out", "dead_letters", "acks")
    assert [list(_spec(folder, "numbers", name).owners) for name in names] == [["team:conduit"]] * 4
    text = NUMBERS.format(id="numbers", trigger="available-now", queue=TAKES_ALL)
    folder.write("numbers.yaml", text + "    owners: [team:payments, ana@example.com]\n")
    assert [list(_spec(folder, "numbers", name).owners) for name in names] == [["team:payments", "ana@example.com"]] * 4


def test_an_asset_says_what_it_is_and_where_it_is_written_down(folder: Folder) -> None:
    folder.numbers()
    spec = _spec(folder, "numbers", "out")
    place = spec.metadata["dagster/code_references"].code_references[0]
    assert spec.kinds == {"file", "spark"}
    assert spec.group_name == "numbers"
    assert place.file_path == str(folder.root / "pipelines" / "numbers.yaml")
    assert place.line_number == 11


def test_the_project_is_found_by_its_environment(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.root / "elsewhere").mkdir()
    (folder.root / "elsewhere" / "one.yaml").write_text(COPY.format(id="one", source="./a", target="./b"))
    monkeypatch.setenv("CONDUIT_PIPELINES", "elsewhere")
    from conduit_dagster.definitions import define

    definitions = define(Project.find(folder.root))
    assert definitions.resolve_job_def("one")


def test_a_broken_file_does_not_take_the_others_down(folder: Folder) -> None:
    folder.numbers()
    folder.write("torn.yaml", "version: '2.2'\npipelines: [\n")
    folder.write("typo.yaml", COPY.format(id="typo", source="./a", target="./b").replace("plugin: file", "plugin: fil"))
    assert {"numbers/out", "typo/broken/file", "torn/broken/file", "conduit/pipeline_files"} <= _keys(folder)
    assert "typo/out" not in _keys(folder)
    description = _spec(folder, "typo", "broken", "file").description or ""
    assert "did you mean file?" in description
    assert re.search(r"plugin\.unknown.*\n.*typo\.yaml:\d+:\d+", description)


def test_a_warning_leaves_the_pipeline_in_place(folder: Folder) -> None:
    text = COPY.format(id="lax", source="./a", target="./b").replace("description:", "descriptoin:")
    folder.write("lax.yaml", text)
    assert "lax/out" in _keys(folder)
    assert "lax/broken/file" not in _keys(folder)


def test_the_asset_of_the_files_checks_them_again(folder: Folder) -> None:
    """The code location may be older than the files."""
    folder.numbers()
    definitions = folder.definitions
    folder.write("torn.yaml", "version: '2.2'\npipelines: [\n")
    job = definitions.resolve_implicit_global_asset_job_def()
    files = job.execute_in_process(
        instance=folder.instance, asset_selection=[dg.AssetKey(["conduit", "pipeline_files"])]
    )
    (check,) = files.get_asset_check_evaluations()
    assert not check.passed
    assert folder.newest("conduit", "pipeline_files")["errors"] == 1


def test_the_sensors_name_the_jobs_that_they_launch(folder: Folder) -> None:
    """Dagster shows a job with its sensors: none of them replays or discards dead letters."""
    folder.numbers()
    repository = folder.definitions.get_repository_def()
    for name in ("conduit_recovery", "conduit_lifecycle"):
        assert [target.job_name for target in repository.get_sensor_def(name).targets] == ["numbers"]


def test_an_empty_project_loads(folder: Folder) -> None:
    assert _keys(folder) == {"conduit/pipeline_files"}


def test_pipelines_that_read_what_others_write_are_linked(folder: Folder) -> None:
    folder.write("a.yaml", COPY.format(id="a", source="./in", target="./middle.jsonl"))
    folder.write("b.yaml", COPY.format(id="b", source="middle.jsonl", target="./parts/"))
    folder.write("c.yaml", COPY.format(id="c", source="./parts/*", target="./out"))
    assert _parents(folder, "b", "in") == {"a/out"}
    assert _parents(folder, "c", "in") == {"b/out"}


def test_pipelines_in_a_circle_still_load(folder: Folder) -> None:
    folder.write("a.yaml", COPY.format(id="a", source="./one", target="./two"))
    folder.write("b.yaml", COPY.format(id="b", source="./two", target="./one"))
    folder.write("c.yaml", COPY.format(id="c", source="./three", target="./three"))
    linked = _parents(folder, "a", "in") | _parents(folder, "b", "in") | _parents(folder, "c", "in")
    assert len(linked) == 1


CHAINED = """
version: "2.2"
pipelines:
  - id: {id}
    delivery: {{log: {log}}}
    connectors:
      - {{id: in, type: source, plugin: {plugin}, settings: {settings}}}
      - {{id: out, type: destination, plugin: file, settings: {{path: ./{id}.jsonl}}}}
"""


def test_chained_pipelines_are_linked_by_what_they_read(folder: Folder) -> None:
    """The log of a source by its asset, an output by the destination's."""

    def write(name: str, log: str, plugin: str, settings: str) -> None:
        folder.write(f"{name}.yaml", CHAINED.format(id=name, log=log, plugin=plugin, settings=settings))

    write("a", "records", "file", "{path: ./in}")
    write("b", "auto", "pipeline", "{pipeline: a}")
    write("c", "auto", "pipeline", "{pipeline: b, connector: out}")
    assert _parents(folder, "b", "in") == {"a/in"}
    assert _parents(folder, "c", "in") == {"b/out"}
    dg.Definitions.validate_loadable(folder.definitions)


def test_a_link_to_a_pipeline_that_is_broken_is_left_out(folder: Folder) -> None:
    broken = CHAINED.format(id="a", log="records", plugin="file", settings="{path: ./in, on-gone: maybe}")
    folder.write("a.yaml", broken)
    folder.write("b.yaml", CHAINED.format(id="b", log="auto", plugin="pipeline", settings="{pipeline: a}"))
    assert _parents(folder, "b", "in") == set()
    assert "a/broken/file" in _keys(folder)


@pytest.mark.parametrize("name", ["orders.eu:1", "x" * 128, "config", "import", "42", "-", "a-b"])
def test_any_id_of_conduit_has_a_job_and_assets(folder: Folder, name: str) -> None:
    folder.write("one.yaml", NUMBERS.format(id=f'"{name}"', trigger="available-now", queue=TAKES_ALL))
    definitions = folder.definitions
    assert definitions.resolve_job_def(job_name(name)).metadata["conduit/pipeline"].value == name
    dg.Definitions.validate_loadable(definitions)
    assert _spec(folder, *asset_key(name, "out").path).metadata["conduit/pipeline"] == name


def test_short_names_are_short_and_their_own() -> None:
    assert short("orders.eu-1") == "orders.eu-1"
    assert len(short("x" * 128)) == 63
    assert short("a:b") != short("a_b") != short("a;b")
    assert kind("builtin:Postgres@v1") == "postgres"


@pytest.mark.parametrize("path", ["./sales", "./sales/*/*.parquet", "./sales/step=*/part-*.parquet"])
def test_a_reader_of_another_pipelines_parquet_files_is_downstream(folder: Folder, path: str) -> None:
    """They lie in folders of a step each, which the glob of the documentation names."""
    writer = COPY.format(id="a", source="./in.jsonl", target="./sales")
    folder.write("a.yaml", "destination, plugin: parquet".join(writer.split("destination, plugin: file")))
    reader = COPY.format(id="b", source=path, target="./b.jsonl")
    folder.write("b.yaml", "source, plugin: parquet".join(reader.split("source, plugin: file")))
    assert _parents(folder, "b", "in") == {"a/out"}
    assert "a/acks" in _parents(folder, "b", "acks")


def test_links_between_many_pipelines_take_one_look_at_each(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 200 pipelines they took half of the time to load the code location, which every run does."""
    for number in range(6):
        name = f"p{number}"
        folder.write(f"{name}.yaml", COPY.format(id=name, source=f"./{number}.jsonl", target=f"./{number + 1}.jsonl"))
    pipelines = open_catalogue(Project.find(folder.root, {})).bound
    looks = list[str]()
    real = FileDestination.owned.fget
    assert real is not None

    def owned(destination: FileDestination) -> str:
        looks.append(destination.context.pipeline)
        return real(destination)

    monkeypatch.setattr(FileDestination, "owned", property(owned))
    links = find_links(pipelines)
    assert {key: links[key] for key in links if key[1] == "in"} == {
        (f"p{n}", "in"): [asset_key(f"p{n - 1}", "out")] for n in range(1, 6)
    }
    assert sorted(looks) == [bound.id for bound in pipelines]


@pytest.mark.timeout(60)
def test_links_of_layers_of_pipelines_follow_no_path_twice(folder: Folder) -> None:
    """Four pipelines read what the four before them write, and so on: 4 to the 16th paths."""
    names = [(layer, number) for layer in range(16) for number in range(4)]
    for layer, number in names:
        paths = {"source": f"./{layer}/*.jsonl", "target": f"./{layer + 1}/{number}.jsonl"}
        folder.write(f"{layer:02}-{number}.yaml", COPY.format(id=f"p{layer}-{number}", **paths))
    links = find_links(open_catalogue(Project.find(folder.root, {})).bound)
    assert links["p15-0", "in"] == [asset_key(f"p14-{number}", "out") for number in range(4)]
