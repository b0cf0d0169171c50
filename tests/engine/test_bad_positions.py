"""Positions that a user's source gives by mistake: one error that names the source and says what a position is."""

from __future__ import annotations

from typing import Any

import pytest
from lab.support import Lab, destination

SOURCE = """
from datetime import datetime
from conduit_dagster.record import Record
from conduit_dagster.sdk import Block, Source, Split


class Mistaken(Source):
    name = "mistaken"

    def initial(self):
        return {initial}

    def latest(self, start, limit, horizon=None):
        return {latest}

    def split(self, start, end, n):
        return [Split(start, 0)]

    def read(self, split, options):
        records = [Record({position}, {{}}, {{"i": i}}) for i in range(3)]
        yield {block}
"""
GOOD = {"initial": "0", "latest": "3", "position": "i + 1", "block": "records"}


def run(lab: Lab, **mistake: str) -> Any:
    (lab.root / "plugins").mkdir(exist_ok=True)
    (lab.root / "plugins" / "mistaken.py").write_text(SOURCE.format(**{**GOOD, **mistake}))
    source = {"id": "in", "type": "source", "plugin": "mistaken", "settings": {}}
    lab.pipeline(connectors=[source, destination()])
    return lab.run()


def test_a_source_without_mistakes(lab: Lab) -> None:
    assert run(lab).error is None
    assert [row["i"] for row in lab.documents("out.jsonl")] == [0, 1, 2]


@pytest.mark.parametrize(
    "mistake",
    [
        {"latest": "None"},
        {"latest": "datetime(2026, 1, 1)"},
        {"latest": "{1, 2}"},
        {"latest": "float('nan')"},
        {"initial": "object()"},
        {"position": "None"},
        {"position": "datetime(2026, 1, 1)"},
        {"position": "b'1'"},
        {"position": "7"},
        {"position": "max(i, 1)", "block": "records[:1]; yield records[1:]"},
    ],
    ids=str,
)
def test_one_that_can_not_be_stored_is_named(lab: Lab, mistake: dict[str, str]) -> None:
    error = run(lab, **mistake).error
    assert error is not None
    assert (error.code, error.fatal, error.node) == ("source.position_invalid", True, "p:in")
    assert lab.lines("out.jsonl") == []


@pytest.mark.parametrize("latest", ["(1, 2)", "{1: 2}"])
def test_one_that_json_changes_is_taken_as_it_comes_back(lab: Lab, latest: str) -> None:
    for _ in range(2):
        assert run(lab, initial="[0, 0]", latest=latest).error is None
    assert [row["i"] for row in lab.documents("out.jsonl")] == [0, 1, 2]
