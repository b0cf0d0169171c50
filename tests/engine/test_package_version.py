"""Workers with another version of the package refuse a step: it could be read and staged otherwise."""

from __future__ import annotations

import pytest
from lab.support import Lab, destination, source

from conduit_dagster.engine import run_jobs


def test_workers_with_another_version_refuse_the_step(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    (lab.root / "in.jsonl").write_text('{"i": 1}\n')
    lab.pipeline(connectors=[source(), destination()])
    monkeypatch.setattr(run_jobs, "PACKAGE_VERSION", "0.0.9")
    error = lab.run().error
    assert error is not None
    assert (error.code, error.fatal) == ("spark.version_differs", True)
    assert "0.0.9" in error.message
    monkeypatch.undo()
    assert lab.run().error is None
    assert len(lab.lines("out.jsonl")) == 1
