"""Positions of an author's source that are documents, lists or fractions: JSON values as any other."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from lab.support import Lab, destination, processor, queue

SOURCE = """
from conduit_dagster.sdk import Block, Record, Source, Split

KINDS = (lambda n: {"at": n}, lambda n: [n], lambda n: n + 0.5, lambda n: 2**70 + n)


def number(position):
    if isinstance(position, dict | list):
        return position["at"] if isinstance(position, dict) else position[0]
    return int(position) % 2**70


class Mine(Source):
    name = "mine"

    def initial(self):
        return {"at": 0}

    def latest(self, start, limit, horizon=None):
        return KINDS[0](8)

    def split(self, start, end, n):
        return [Split(start, 0, detail={"end": end})]

    def read(self, split, options):
        for n in range(number(split.start) + 1, number(split.detail["end"]) + 1):
            READ
"""
FRESH = "yield [Record(KINDS[n % len(KINDS)](n), {}, {'i': n}, {'i': n})]"
BLOCK = "yield Block.of([Record(KINDS[n % len(KINDS)](n), {}, {'i': n}, {'i': n})])"
OUT = """
from conduit_dagster.sdk import DriverDestination, Nack, Rejected


class Picky(DriverDestination):
    name = "picky"

    def deliver(self, records, delivery):
        rows = [record.after["i"] for record in records]
        for place, i in enumerate(rows):
            if i in (3, 4):
                raise Rejected(place, Nack("picky.no", str(i)))
        with open(self.context.resolve("out.jsonl"), "a") as file:
            file.writelines(f'{{"i": {i}}}\\n' for i in rows)
"""


def project(lab: Lab, read: str, out: dict[str, Any], *processors: Any, log: str = "positions") -> None:
    lab.write("plugins/mine.py", [SOURCE.replace("READ", read)])
    lab.write("plugins/picky.py", [OUT])
    own = {"id": "in", "type": "source", "plugin": "mine", "settings": {}}
    delivery = {"log": log}
    lab.pipeline(
        connectors=[own, out], processors=list(processors), delivery=delivery, **{"dead-letter-queue": queue()}
    )


@pytest.mark.parametrize("start", ["source", "node"])
@pytest.mark.parametrize("read", [FRESH, BLOCK], ids=["list", "block"])
def test_a_record_that_a_processor_nacks_is_a_letter(lab: Lab, read: str, start: Literal["source", "node"]) -> None:
    """Its archive took text and numbers alone: every run failed at the same step."""
    lab.write("own.py", ["def f(r):\n    assert r.after['i'] > 4\n    return r"])
    project(lab, read, destination(), processor("own", "python", function="own:f"))
    assert lab.run().error is None
    assert [row["i"] for row in lab.documents("out.jsonl")] == [5, 6, 7, 8]
    lab.write("own.py", ["def f(r):\n    return r"])
    assert lab.replay(start=start)["replayed"] == 4
    assert [row["i"] for row in lab.documents("out.jsonl")] == [5, 6, 7, 8, 1, 2, 3, 4]


@pytest.mark.parametrize("read", [FRESH, BLOCK], ids=["list", "block"])
def test_a_record_that_a_destination_refuses_is_a_letter(lab: Lab, read: str) -> None:
    project(lab, read, destination() | {"plugin": "picky", "settings": {}})
    assert lab.run().error is None
    assert sorted(row["i"] for row in lab.documents("out.jsonl")) == [1, 2, 5, 6, 7, 8]
    assert len(lab.letters()) == 2
