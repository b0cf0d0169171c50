"""``positions rewind --to`` where a plugin's positions are of another kind than the stored one."""

from __future__ import annotations

from typing import Any

import pytest
from lab.operating import error
from lab.support import Lab, destination, queue

NUMBERS = """
from conduit_dagster.sdk import Record, Source, Split


class Numbers(Source):
    name = "numbers"

    def initial(self):
        return INITIAL

    def latest(self, start, limit, horizon=None):
        return position(max(number(start), min(6, number(start) + limit.records)))

    def split(self, start, end, n):
        return [Split(start, 0, detail={"end": number(end)})]

    def read(self, split, options):
        yield [Record(position(n), {}, {"n": n}) for n in range(number(split.start) + 1, split.detail["end"] + 1)]
"""
INTEGERS = "INITIAL, number, position = 0, int, int"
OBJECTS = 'INITIAL, number, position = {"n": 0}, lambda at: at["n"], lambda n: {"n": n}'
TEXTS = "INITIAL, number, position = None, lambda at: int(at or 0), str"


@pytest.fixture
def lab(lab: Lab) -> Lab:
    lab.pipeline(
        connectors=[{"id": "in", "type": "source", "plugin": "numbers"}, destination()],
        **{"dead-letter-queue": queue()},
    )
    return lab


def version(lab: Lab, positions: str) -> None:
    lab.write("plugins/numbers.py", [NUMBERS, positions])


def values(lab: Lab) -> list[int]:
    return [row["n"] for row in lab.documents("out.jsonl")]


def test_a_new_version_with_other_positions_goes_on_where_the_old_one_ended(run: Any, lab: Lab) -> None:
    version(lab, INTEGERS)
    assert lab.run().error is None
    version(lab, OBJECTS)
    failed = lab.run().error
    assert failed is not None
    assert "plugins/numbers.py" in failed.message
    assert error(run("positions", "rewind", "p", "--to", '"4"', "--json"))["message"] == (
        "in has no such position: it is text, not a number or an object"
    )
    there = ("positions", "rewind", "p", "--to", '{"n": 4}')
    assert error(run(*there, "--json"))["code"] == "positions.maybe_forward"
    assert run(*there, "--force").code == 0
    assert lab.run().error is None
    assert values(lab) == [1, 2, 3, 4, 5, 6, 5, 6]


def test_a_position_of_a_source_that_begins_at_null(run: Any, lab: Lab) -> None:
    version(lab, TEXTS)
    assert lab.run().error is None
    assert run("positions", "rewind", "p", "--to-start").code == 0
    assert run("positions", "rewind", "p", "--to", '"4"', "--force").code == 0
    assert lab.run().error is None
    assert values(lab) == [1, 2, 3, 4, 5, 6, 5, 6]


def test_a_whole_number_and_a_fraction_are_of_one_kind(run: Any, lab: Lab) -> None:
    version(lab, INTEGERS)
    assert lab.run().error is None
    assert run("positions", "rewind", "p", "--to", "4.0", "--force").code == 0
    assert lab.run().error is None
    assert values(lab) == [1, 2, 3, 4, 5, 6, 5, 6]
