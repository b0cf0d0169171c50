"""Whatever is in one pipeline file: a finding or a pipeline that can run, and no effect on the file beside it."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from lab.mutated_files import files

from conduit_dagster.cli.description import listed
from conduit_dagster.cli.terminal import console
from conduit_dagster.cli.validate import judged, show_findings
from conduit_dagster.config.project import Project
from conduit_dagster.engine.catalogue import Catalogue, open_catalogue

MANY = int(os.environ.get("FUZZ_EXAMPLES") or 150)
"""`make fuzz N=…` sets another number."""
GOOD = """\
version: "2.2"
pipelines:
  - id: untouched
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: ./untouched-in}}
      - {id: out, type: destination, plugin: file, settings: {path: ./untouched-out}}
"""
fuzzed = settings(max_examples=MANY, suppress_health_check=list(HealthCheck))
Open = Callable[[bytes], Catalogue]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a project with a good file and one with the given bytes."""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "good.yaml").write_text(GOOD)
    monkeypatch.chdir(tmp_path)

    def open_(data: bytes) -> Catalogue:
        (tmp_path / "pipelines" / "bad.yaml").write_bytes(data)
        return open_catalogue(Project.find(tmp_path, {}))

    return open_


@given(data=files())
@fuzzed
def test_a_finding_or_a_run(opened: Open, data: bytes) -> None:
    """No file raises, is unaccounted for, or reaches the safety net; what is found can be printed."""
    catalogue = opened(data)
    assert [finding.trace for finding in catalogue.findings if finding.code == "config.check_failed"] == []
    assert catalogue.get("untouched") is not None
    bound = {one.id for one in catalogue.bound}
    for parsed in catalogue.loaded.pipelines:
        assert (parsed.config.id in bound) == parsed.runnable
        assert parsed.runnable or any(one.is_error and one.file == parsed.file for one in catalogue.findings)
    said = judged(catalogue, catalogue.findings).envelope("validate")
    assert json.loads(said)["result"]["findings"] == [finding.as_json() for finding in catalogue.findings]
    said.encode()
    page = io.StringIO()
    show_findings(console(page), catalogue.findings)
    page.getvalue().encode()
    assert [row["id"] for row in listed(catalogue, None)] == [one.config.id for one in catalogue.loaded.pipelines]
