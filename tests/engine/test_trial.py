"""Tests of a pipeline, and dry runs: what its processors do with records, without Spark and without writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lab.support import DECODE, Lab, destination, processor, source

from conduit_dagster.engine.trial.cases import CaseResult, run_case
from conduit_dagster.engine.trial.trace import dry_run
from conduit_dagster.recovery.errors import FatalError

TAG = processor("tag", "field.set", field=".Payload.After.tag", expression="'t' + str(after.i)")
CONVERT = processor("convert", "field.convert", field=".Payload.After.n", type="int")
EVEN = processor("even", "filter", condition="after.i % 2 == 1")
UPPER = processor("upper", "field.set", field=".Payload.After.tag", expression="after.tag.upper()")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A project without a session: none is needed."""
    return Lab(tmp_path)


def build(lab: Lab, *tests: Any, **more: Any) -> None:
    """A pipeline with two destinations, one of them with a processor of its own."""
    usual: dict[str, Any] = {
        "connectors": [source(), destination(), destination("big", processors=[UPPER])],
        "processors": [DECODE, TAG, CONVERT, EVEN],
    }
    lab.pipeline(**{**usual, "tests": list(tests), **more})


def verdict(lab: Lab, records: list[Any], expect: Any = None, **more: Any) -> CaseResult:
    """Of one test."""
    build(lab, {"name": "t", "records": records, "expect": expect or {}, **more})
    catalogue = lab.catalogue()
    [bound] = catalogue.bound
    return run_case(bound, bound.config.tests[0], catalogue.plugins)


def raw(i: int, n: Any = "1") -> Any:
    """A record as the source returns it."""
    return {"after": json.dumps({"i": i, "n": n})}


def flaws(found: CaseResult) -> list[str]:
    """Where something differs from the expectation."""
    return [flaw.where for flaw in found.flaws]


def test_what_is_as_expected(lab: Lab) -> None:
    after = {"i": 2, "n": 1, "tag": "t2"}
    expect = {
        "destinations": {
            "out": [{"after": after, "operation": "create", "metadata": {"conduit.source.connector.id": "p:in"}}],
            "big": [{"after": {**after, "tag": "T2"}}],
        },
        "nacked": [{"node": "convert", "code": "field.convert.invalid", "message": "many"}],
        "filtered": {"even": 1},
    }
    assert verdict(lab, [raw(1), raw(2), raw(4, "many")], expect).passed


@pytest.mark.parametrize(
    ("expect", "where"),
    [
        ({"destinations": {"out": []}}, ["out: records"]),
        ({"destinations": {"out": [{"after": {"i": 2}}]}}, ["out: record 1: after"]),
        ({"destinations": {"out": [{"operation": "delete"}]}}, ["out: record 1: operation"]),
        ({"destinations": {"out": [{"metadata": {"m": "1"}}]}}, ["out: record 1: metadata"]),
        ({"destinations": {"out": [{"key": "7"}]}}, ["out: record 1: key"]),
        ({"destinations": {"out": [{"after": {"i": 2, "n": 1.0, "tag": "t2"}}]}}, ["out: record 1: after"]),
        ({"destinations": {"out": [{"after": {"i": 2, "n": True, "tag": "t2"}}]}}, ["out: record 1: after"]),
        ({"destinations": {"out": [{"after": None, "key": None}]}}, ["out: record 1: after"]),
        ({"destinations": {"out": [{"after": ""}]}}, ["out: record 1: after"]),
        ({"destinations": {"big": [{}, {}]}}, ["big: records"]),
        ({"filtered": {"even": 1}}, ["filtered by even"]),
        ({"nacked": [{}]}, ["nacked"]),
    ],
)
def test_what_is_not(lab: Lab, expect: Any, where: list[str]) -> None:
    assert flaws(verdict(lab, [raw(2)], expect)) == where


@pytest.mark.parametrize("nack", [{"node": "tag"}, {"code": "other"}, {"message": "nothing of the kind"}])
def test_another_nack(lab: Lab, nack: Any) -> None:
    [flaw] = verdict(lab, [raw(2, "many")], {"nacked": [nack]}).flaws
    assert flaw.where == "nack 1" and flaw.got.startswith("convert: field.convert.invalid: ")


def test_a_nack_that_nobody_expects_fails_the_test(lab: Lab) -> None:
    found = verdict(lab, [raw(2, "many")])
    assert flaws(found) == ["nacked"] and "field.convert.invalid" in found.flaws[0].got[0]


@pytest.mark.parametrize(
    ("mock", "expect"),
    [
        ({}, {"destinations": {"out": [{"after": {"i": 2, "n": "x", "tag": "t2"}}]}}),
        ({"record": {"after": {"i": 8}, "metadata": {"m": "1"}}}, {"destinations": {"out": [{"after": {"i": 8}}]}}),
        ({"drop": True}, {"destinations": {"out": []}, "filtered": {"convert": 1}}),
        ({"nack": "down"}, {"nacked": [{"node": "convert", "code": "processor.error", "message": "down"}]}),
    ],
)
def test_mocks(lab: Lab, mock: Any, expect: Any) -> None:
    more = {"mocks": {"convert": mock, "big:upper": {}}}
    assert verdict(lab, [raw(2, "x")], expect, **more).flaws == []


def test_a_mock_gives_no_payload(lab: Lab) -> None:
    expect = {"destinations": {"big": [{"after": None, "key": None, "before": {"i": 1}}]}}
    mocks = {"big:upper": {"record": {"after": None, "before": {"i": 1}}}}
    assert verdict(lab, [raw(2)], expect, mocks=mocks).flaws == []


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"mocks": {"nobody": {}}}, "mocks"),
        ({"mocks": {"upper": {}}}, "mocks"),
        ({"source": "other"}, "source"),
        ({"expect": {"destinations": {"nowhere": []}}}, "expect.destinations"),
        ({"expect": {"filtered": {"p:even": 1}}}, "expect.filtered"),
    ],
)
def test_what_is_not_in_the_pipeline_is_named(lab: Lab, more: Any, where: str) -> None:
    build(lab, {"name": "t", "records": [raw(2)], **more})
    catalogue = lab.catalogue()
    [flaw] = run_case(catalogue.bound[0], catalogue.bound[0].config.tests[0], catalogue.plugins).flaws
    assert flaw.where == where and flaw.expected.startswith("one of ")


def test_of_several_sources_one_is_named(lab: Lab) -> None:
    two = {**source("./two.jsonl"), "id": "two", "processors": [processor("own", "filter")]}
    case = {"name": "t", "records": [raw(2)]}
    build(lab, case, {**case, "source": "two", "expect": {"filtered": {"two:own": 1}}},
          connectors=[source(), two, destination()])  # fmt: skip
    catalogue = lab.catalogue()
    [bound] = catalogue.bound
    first, second = (run_case(bound, test, catalogue.plugins) for test in bound.config.tests)
    assert flaws(first) == ["source"] and second.passed


def test_a_test_does_not_make_the_pipeline_another_one(lab: Lab) -> None:
    """A degraded pipeline restarts when its file changes: a test says nothing about what it does."""
    build(lab)
    [before] = lab.catalogue().bound
    build(lab, {"name": "t", "records": []})
    [after] = lab.catalogue().bound
    assert before.digest == after.digest


def test_a_changed_script_or_plugin_makes_it_another_one(lab: Lab) -> None:
    """As its file does: a degraded pipeline starts again with the fix."""
    (lab.root / "plugins").mkdir()

    def digest(script: str, plugin: str) -> str:
        lab.write("transforms.py", [script])
        lab.write("plugins/mine.py", [plugin])
        [bound] = lab.catalogue().bound
        return bound.digest

    plugin = "from conduit_dagster.sdk.processor import Processor\nclass M(Processor):\n    name = 'mine'\n"
    plugin += "    def process(self, record):\n        return record\n"
    script = "def same(record):\n    return record\n"
    build(lab, processors=[processor("a", "mine"), processor("b", "python", function="transforms:same")])
    found = [digest(script, plugin), digest(script + "#", plugin), digest(script, plugin + "#"), digest(script, plugin)]
    assert len(set(found)) == 3 and found[0] == found[3]


def test_a_dry_run_shows_each_record_before_and_after_each_node(lab: Lab) -> None:
    lab.write("in.jsonl", [{"i": i, "n": "1"} for i in range(9)])
    build(lab, redact=[".Payload.After.n"])
    [bound] = lab.catalogue().bound
    first, second = dry_run(bound, 2)
    assert [node["node"] for node in first.nodes] == ["p:decode", "p:tag", "p:convert", "p:even", "p:big:upper"]
    tag = first.nodes[1]
    assert (tag["given"][0]["payload"]["after"], tag["records"][0]["payload"]["after"]) == (
        {"i": 0, "n": "[redacted]"}, {"i": 0, "n": "[redacted]", "tag": "t0"},
    )  # fmt: skip
    assert [one["payload"]["after"]["tag"] for one in first.arrived["big"]] == ["T0"]
    assert second.nodes[-1]["filtered"] == 1 and second.arrived == {"out": [], "big": []}
    assert {path.name for path in lab.root.iterdir()} == {"in.jsonl", "pipelines"}


def test_a_dry_run_of_nothing_and_of_a_join(lab: Lab) -> None:
    lab.write("in.jsonl", [])
    build(lab)
    assert list(dry_run(lab.catalogue().bound[0], 2)) == []
    build(lab, connectors=[source(), {**source("./two.jsonl"), "id": "two"}, destination()], **{"fan-in": "join"})
    with pytest.raises(FatalError, match="join"):
        list(dry_run(lab.catalogue().bound[0], 2))
