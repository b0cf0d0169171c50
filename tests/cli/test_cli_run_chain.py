"""``run --once`` with both pipelines of a chain."""

from __future__ import annotations

import pytest
from lab.chain_lab import downstream, upstream
from lab.operating import result
from lab.support import Lab

pytestmark = pytest.mark.usefixtures("shared_session")
ROWS = [{"i": i} for i in range(20)]


def test_what_was_there_at_the_start_is_drained_and_the_next_run_takes_the_rest(run, lab: Lab) -> None:
    lab.write("in.jsonl", ROWS)
    upstream(lab)
    downstream(lab)
    for _ in range(2):
        ran = result(run("run", "--once", "--json"))
        assert {row["status"] for row in ran["pipelines"]} == {"stopped"}
        assert len(ran["pipelines"]) == 2
    assert lab.documents("out.jsonl") == ROWS


def test_a_file_alone_finds_the_other_one_in_the_projects_folder(run, lab: Lab) -> None:
    lab.write("in.jsonl", ROWS)
    upstream(lab)
    downstream(lab)
    for name in ("a", "p"):
        assert run("run", "--once", f"pipelines/{name}.yaml").code == 0
    assert lab.documents("out.jsonl") == ROWS


def test_the_reference_has_it(run) -> None:
    text = run("connectors", "describe", "pipeline").out
    assert "Logged records of another pipeline of the project, or its published output" in text
    assert "connector" in text
