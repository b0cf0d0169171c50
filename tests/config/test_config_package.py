from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from conduit_dagster.cli.reference import settings_of
from conduit_dagster.config import Pipeline, ProjectSettings, parse_file, parse_text

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT.parent / "shared" / "golden"
SEED = """\
version: "2.2"
pipelines:
  - id: p
    status: running
    delivery: {batch-size: 1, batch-bytes: 1MB, log: auto}
    recovery: {min-delay: 1s}
    trigger: {every: 5m}
    connectors:
      - &c {id: in, type: source, plugin: file, settings: {path: "$A"}, processors: [{id: x, type: y}]}
      - {<<: *c, id: out, type: destination}
    dead-letter-queue: {window-size: 5, window-nack-threshold: 2}
"""


def test_importing_starts_neither_spark_nor_dagster() -> None:
    heavy = ("pyspark", "dagster", "pyarrow")
    code = f"import sys, conduit_dagster.config; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="needs the shared golden pipelines beside the checkout")
def test_conduits_own_pipelines_have_no_errors() -> None:
    files = sorted(GOLDEN.glob("*/pipeline.yaml"))
    assert files
    for file in files:
        parsed = parse_file(file, {}, strict=True)
        assert [finding.render() for finding in parsed.findings if finding.is_error] == []
        assert all(pipeline.runnable for pipeline in parsed.pipelines)


@settings(max_examples=150, deadline=None)
@given(st.text(), st.booleans())
def test_no_text_raises(text: str, strict: bool) -> None:
    for finding in parse_text(text, "f", {}, strict).findings:
        assert finding.line >= 1
        assert finding.column >= 1
        assert finding.render()


_PIECE = st.sampled_from(
    [
        "",
        "-",
        ":",
        "{",
        "}",
        "[",
        "]",
        "&c",
        "*c",
        "\t",
        "\n",
        "'",
        '"',
        "$A",
        "${",
        "|",
        "---\n",
        "null",
        "<<: 1",
        "#",
        "é",
        "-1",
        "  ",
    ]
)


@settings(max_examples=250, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(SEED)), st.integers(0, 12), _PIECE), min_size=1, max_size=4))
def test_no_spoilt_pipeline_file_raises(edits: list[tuple[int, int, str]]) -> None:
    text = SEED
    for start, length, piece in edits:
        text = text[:start] + piece + text[start + length :]
    parsed = parse_text(text, "f", {"A": "x"})
    lines = text.count("\n") + 1
    assert all(1 <= finding.line <= lines + 1 for finding in parsed.findings)


_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_FIELD = st.sampled_from([name.replace("_", "-") for name in Pipeline.model_fields])


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(_FIELD, _VALUE, max_size=5), _VALUE)
def test_no_value_raises(fields: dict[str, object], other: object) -> None:
    """JSON is YAML, so any value can be placed anywhere."""
    import json

    connectors = [
        {"id": other, "type": "source", "plugin": "x", "settings": other, "processors": [other]},
        other,
    ]
    document = {"version": "2.2", "pipelines": [{"connectors": connectors, **fields}, other]}
    parse_text(json.dumps(document), "f", {})


def _models(model: type[BaseModel]) -> list[type[BaseModel]]:
    from conduit_dagster.config.model_findings import section_at

    inner = [section_at(model, (name.replace("_", "-"),)) for name in model.model_fields]
    return [model, *(deeper for section in inner if section is not None for deeper in _models(section))]


@pytest.mark.parametrize("root", [Pipeline, ProjectSettings])
def test_every_field_is_described(root: type[BaseModel]) -> None:
    """The reference pages are generated from the models."""
    for model in _models(root):
        assert model.__doc__
        undescribed = [setting.name for setting in settings_of(model, {}) if not setting.description]
        assert not undescribed, model.__name__
    assert root.model_json_schema()["properties"]


def test_an_optional_value_has_the_type_and_bounds_of_its_value() -> None:
    """The reference said number of durations, and no bounds."""
    found = {one.name: one.type for model in _models(Pipeline) for one in settings_of(model, {})}
    assert found["max-lag"] == found["time"] == "duration, also in days"
    assert found["open-limit"] == "integer, at least 0"
