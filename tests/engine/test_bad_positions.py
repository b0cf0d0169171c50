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


QUEUE = """
from conduit_dagster.sdk import Block, Record, Source, Split


class Counted(Source):
    name = "counted"
    replayable = False
    asked = 0

    def initial(self):
        return {"n": 0}

    def latest(self, start, limit, horizon=None):
        self.asked += 1
        return {"n": 5} if self.asked < 4 else start

    def split(self, start, end, n):
        return [Split(start, 0)]

    def read(self, split, options):
        for i in range(split.start.get("n", 0), 5):
            yield BLOCK
"""


@pytest.mark.parametrize("block", ["[record(i)]", "Block.of([record(i)])"])
def test_a_source_that_does_not_know_its_records_positions_as_a_start_does_not_begin_anew(lab: Lab, block: str) -> None:
    """``latest`` counts, records have ids: each read began at the first record, without end."""
    (lab.root / "plugins").mkdir()
    made = block.replace("record(i)", 'Record({"id": f"m{i}"}, {}, {"i": i})')
    (lab.root / "plugins" / "counted.py").write_text(QUEUE.replace("BLOCK", made))
    source = {"id": "in", "type": "source", "plugin": "counted", "settings": {}}
    lab.pipeline(connectors=[source, destination()])
    error = lab.run().error
    assert error is not None
    assert (error.code, error.fatal, error.node) == ("source.position_invalid", True, "p:in")
    assert 'the record at {"id": "m4"} again' in error.message
    assert [row["i"] for row in lab.documents("out.jsonl")] == [0, 1, 2, 3, 4]
