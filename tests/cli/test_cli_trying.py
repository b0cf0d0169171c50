"""``dry-run`` and ``test``."""

from __future__ import annotations

from typing import Any

import pytest
from lab.operating import error, result
from lab.support import DECODE, Lab, destination, processor, source

TAG = processor("tag", "field.set", field=".Payload.After.tag", value="x")
GOOD = {
    "name": "a good one",
    "records": [{"after": '{"i": 1}'}],
    "expect": {"destinations": {"out": [{"after": {"i": 1, "tag": "x"}}]}},
}
BAD = {**GOOD, "name": "a bad one", "records": [{"after": "no json"}]}


@pytest.fixture
def lab(project: Any) -> Lab:
    """The project that commands run in."""
    return Lab(project)


def build(lab: Lab, *tests: Any) -> None:
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE, TAG], tests=list(tests))


def test_tests_pass_or_say_what_is_wrong(run: Any, lab: Lab) -> None:
    build(lab, GOOD)
    assert result(run("test", "--json")) == {
        "tests": [{"pipeline": "p", "name": "a good one", "passed": True, "flaws": []}]
    }
    build(lab, GOOD, BAD)
    ran = run("test")
    assert ran.code == 1
    assert "passed  p: a good one" in ran.out and "FAILED  p: a bad one" in ran.out and "json.decode" in ran.out
    assert error(run("test", "--json"))["code"] == "test.failed"
    assert run("test", "--only", "good").code == 0
    assert error(run("test", "--only", "other", "--json"))["code"] == "test.none"


def test_a_file_with_mistakes_is_not_tested(run: Any, lab: Lab) -> None:
    build(lab, {**GOOD, "records": [{"after": [1]}]})
    assert run("test", "--json").code == 2


def test_a_dry_run(run: Any, lab: Lab) -> None:
    lab.write("in.jsonl", [{"i": i} for i in range(9)])
    build(lab)
    facts = result(run("dry-run", "pipelines/p.yaml", "--records", "2", "--json"))
    assert [len(one["nodes"]) for one in facts["records"]] == [2, 2]
    shown = run("dry-run", "pipelines/p.yaml").out
    assert "p:tag: passed" in shown and "-> out: 1" in shown and "5 records tried" in shown
    assert r'"after": "{\"i\":' in shown  # raw data as text, not as Base64
    assert error(run("dry-run", "pipelines/p.yaml", "--pipeline", "q", "--json"))["code"] == "usage.unknown_pipeline"
    assert not (lab.root / "out.jsonl").exists() and not (lab.root / ".conduit").exists()


def test_a_query_is_tried_through_spark(run: Any, lab: Lab) -> None:
    """It is the only processor that starts Spark; its errors for a record are that record's nack here as well."""
    half = processor("half", "sql", columns="i INT", query="SELECT i, 10 / i AS q FROM record WHERE i < 9")
    nacked = {
        **GOOD,
        "name": "a nack",
        "records": [{"after": '{"i": 0}'}],
        "expect": {"nacked": [{"code": "sql.failed"}]},
    }
    good = {**GOOD, "expect": {"destinations": {"out": [{"after": {"i": 1, "q": 10.0}}]}}}
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE, half], tests=[good, nacked])
    assert run("test").code == 0
    lab.write("in.jsonl", [{"i": i} for i in (0, 2, 9)])
    shown = run("dry-run", "pipelines/p.yaml").out
    assert "p:half: nacked, sql.failed" in shown and '"q": 5.0' in shown and "p:half: filtered" in shown
