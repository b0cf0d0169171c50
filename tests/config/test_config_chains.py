"""Errors between the files of pipelines that read each other, found offline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab.chain_lab import chained
from lab.support import Lab, destination, queue, source

from conduit_dagster.config.findings import Finding
from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import open_catalogue

LOG = {"log": "records"}
DELTA = {"id": "table", "type": "destination", "plugin": "delta", "settings": {"path": "./table"}}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def pipeline(lab: Lab, name: str, *connectors: Any, **more: Any) -> None:
    lab.pipeline(id=name, connectors=connectors, **{"dead-letter-queue": queue(path=f"./dead-{name}.jsonl"), **more})


def reads(lab: Lab, upstream: str = "orders", connector: str = "", name: str = "p") -> None:
    pipeline(lab, name, chained(upstream, connector), destination(f"out-{name}"))


def orders(lab: Lab, *connectors: Any, log: str = "records", **delivery: Any) -> None:
    connectors = connectors or (source(), destination("first"))
    pipeline(lab, "orders", *connectors, delivery={"log": log, **delivery})


def found(lab: Lab) -> list[Finding]:
    return lab.catalogue().findings


def only(lab: Lab) -> tuple[str, str, str, str]:
    """Code, place, message and fix of the one finding."""
    (finding,) = found(lab)
    assert finding.is_error
    assert lab.catalogue().get("p") is None
    return finding.code, finding.path, finding.message, finding.fix or ""


def test_the_only_source_that_is_logged_is_meant(lab: Lab) -> None:
    orders(lab)
    reads(lab)
    assert found(lab) == []
    bound = lab.catalogue().get("p")
    assert bound is not None
    assert bound.compiled.sources[0].source.unit == {"plugin": "pipeline", "pipeline": "orders", "source": "in"}


def test_auto_is_a_log_where_the_planner_chooses_it(lab: Lab) -> None:
    two = {**source("./two.jsonl"), "id": "two"}
    pipeline(lab, "orders", source(), two, destination("first"), delivery={"log": "auto"}, **{"fan-in": "alternate"})
    reads(lab, connector="two")
    assert found(lab) == []


def test_an_unknown_pipeline_gets_the_nearest_one(lab: Lab) -> None:
    orders(lab)
    reads(lab, "order")
    code, path, message, fix = only(lab)
    assert (code, path) == ("chain.unknown_pipeline", "/pipelines/0/connectors/0/settings/pipeline")
    assert ("there is no pipeline order" in message, fix) == (True, "did you mean orders?")


def test_an_unknown_connector_gets_the_nearest_one(lab: Lab) -> None:
    orders(lab)
    reads(lab, connector="fist")
    code, path, message, fix = only(lab)
    assert (code, path) == ("chain.unknown_connector", "/pipelines/0/connectors/0/settings/connector")
    assert ("no connector fist" in message, fix) == (True, "did you mean first?")


@pytest.mark.parametrize("connector", ["", "in"])
def test_without_a_log_of_records_it_is_told_where_to_set_it(lab: Lab, connector: str) -> None:
    orders(lab, log="positions")
    reads(lab, connector=connector)
    code, _, message, fix = only(lab)
    assert code == "chain.no_log"
    assert "keeps no log of records" in message
    assert f"set delivery: {{log: records}} in {lab.root}/pipelines/orders.yaml:" in fix
    assert "or read what it writes: connector: first" in fix


def test_of_several_sources_one_is_to_be_named(lab: Lab) -> None:
    orders(lab, source(), {**source("./two.jsonl"), "id": "two"}, destination("first"))
    reads(lab)
    code, _, message, fix = only(lab)
    assert (code, "2 sources" in message) == ("chain.which_connector", True)
    assert fix == "name one in settings.connector: the log of in, two or the output of first"


@pytest.mark.parametrize(
    ("out", "delivery", "said"),
    [
        (DELTA, {}, "table is a delta"),
        (destination("table", settings={"path": "./t", "sdk.record.format": "debezium/json"}), {}, "debezium/json"),
        (destination("table"), {"strategy": "at-most-once"}, "it is unknown how much"),
    ],
)
def test_what_cannot_be_read_back_is_refused_by_name(lab: Lab, out: Any, delivery: Any, said: str) -> None:
    orders(lab, source(), out, log="positions", **delivery)
    reads(lab, connector="table")
    code, _, message, fix = only(lab)
    assert (code, said in message) == ("chain.not_readable", True)
    assert fix


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_chain_that_closes_on_itself(lab: Lab, length: int) -> None:
    names = ["p", "q", "r"][:length]
    for name, other in zip(names, [*names[1:], names[0]], strict=True):
        pipeline(lab, name, chained(other), destination(f"out-{name}"), delivery=LOG)
    findings = found(lab)
    assert [finding.code for finding in findings] == ["chain.circle"] * length
    circle = [*names, names[0]]
    assert findings[0].message.endswith(" reads ".join(circle))


def test_who_reads_a_circle_is_in_none(lab: Lab) -> None:
    pipeline(lab, "q", chained("r"), destination("out-q"), delivery=LOG)
    pipeline(lab, "r", chained("q"), destination("out-r"), delivery=LOG)
    reads(lab, "q")
    assert [Path(finding.file).name for finding in found(lab)] == ["q.yaml", "r.yaml"]


def test_the_setting_pipeline_is_required(lab: Lab) -> None:
    pipeline(lab, "p", {**chained(), "settings": {}}, destination("out"))
    code, _, message, _ = only(lab)
    assert (code, "pipeline is missing" in message) == ("setting.required", True)


def test_a_file_that_is_looked_at_alone_knows_the_projects_pipelines(lab: Lab) -> None:
    orders(lab)
    reads(lab)
    catalogue = open_catalogue(Project.find(lab.root, {}), [lab.root / "pipelines" / "p.yaml"])
    assert catalogue.findings == []
    assert [bound.id for bound in catalogue.bound] == ["p"]


def test_files_that_are_named_together_know_each_other(lab: Lab) -> None:
    orders(lab)
    reads(lab)
    (lab.root / "pipelines").rename(lab.root / "elsewhere")
    files = [lab.root / "elsewhere" / name for name in ("p.yaml", "orders.yaml")]
    assert open_catalogue(Project.find(lab.root, {}), files).findings == []
    alone = open_catalogue(Project.find(lab.root, {}), files[:1])
    assert [finding.code for finding in alone.findings] == ["chain.unknown_pipeline"]


def test_a_changed_output_of_the_other_pipeline_asks_for_a_new_run(lab: Lab) -> None:
    orders(lab, log="positions")
    reads(lab, connector="first")
    before = lab.catalogue().get("p")
    written = destination("first", settings={"path": "./first.jsonl", "sdk.record.format": "opencdc/json"})
    orders(lab, source(), written, log="positions")
    after = lab.catalogue().get("p")
    assert before is not None and after is not None
    assert before.digest != after.digest


def test_validating_a_chain_opens_no_store_and_imports_no_pyarrow(lab: Lab) -> None:
    orders(lab)
    reads(lab)
    reads(lab, connector="first", name="q")
    code = (
        "import sys\nfrom conduit_dagster.cli.main import main\nmain(['validate'])\n"
        "print([m for m in ('pyspark', 'pyarrow', 'dagster') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=lab.root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert not (lab.root / ".conduit").exists()


def test_a_plugin_of_the_project_that_is_called_so_is_no_chain(lab: Lab) -> None:
    (lab.root / "plugins").mkdir()
    (lab.root / "plugins" / "own.py").write_text(
        "from conduit_dagster.connectors.chaos.source import ChaosSource\n\n"
        "class Own(ChaosSource):\n    name = 'pipeline'\n"
    )
    own = {"id": "in", "type": "source", "plugin": "pipeline", "settings": {"pipeline": "nobody"}}
    pipeline(lab, "p", own, destination("out"))
    assert [finding.code for finding in found(lab) if finding.is_error] == []
    pipeline(lab, "p", {**own, "plugin": "builtin:pipeline"}, destination("out"))
    assert [finding.code for finding in found(lab) if finding.is_error] == ["chain.unknown_pipeline"]
