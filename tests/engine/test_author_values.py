"""What plugins give as values and keep for themselves: classes that derive from JSON's, dates, caches."""

from __future__ import annotations

from typing import Any

import pytest
from lab.support import DECODE, Lab, destination, processor, queue, source

PLUGINS = '''
import enum
from datetime import date
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

import numpy as np

from conduit_dagster.record import Record
from conduit_dagster.sdk import Processor, Source, Split, TransientError

class Text(str): pass

class Operation(enum.StrEnum):
    UPDATE = "update"

VALUES = [np.float64(1.5), np.str_("a"), Text("b"), (1, 2), [np.float64("2"), {"in": Text("c")}]]
PAGES = {}

class Values(Source):
    name = "values"

    def initial(self): return 0
    def latest(self, start, limit, horizon=None): return min(3, start + limit.records)
    def split(self, start, end, n): return [Split(start, 0, detail={"to": end})] if end > start else []
    def read(self, split, options): yield self.page(split.start, split.detail["to"])
    def page(self, start, end): return [record(n) for n in range(start, end)]

@lru_cache
def record(n):
    return Record(POSITION, {}, AFTER, operation=OPERATION)

class Table(Processor):
    """Gives a document that it keeps."""

    name = "table"

    def process(self, record):
        GIVES
        return record

class Away(Processor):
    """Is away once."""

    name = "away"

    def process(self, record):
        away = Path(AWAY)
        if record.after["n"] == 20 and not away.exists():
            away.touch()
            raise TransientError("away", code="mine.away")
        return record
'''
PLAIN = [1.5, "a", "b", [1, 2], [2.0, {"in": "c"}]]


def build(lab: Lab, *processors: Any, given: Any = None, delivery: Any = None, **text: str) -> None:
    default = {"POSITION": "n + 1", "AFTER": "{'n': n}", "OPERATION": "'create'", "GIVES": "pass"}
    plugins = PLUGINS.replace("AWAY", repr(str(lab.root / "away")))
    for name, value in {**default, **text}.items():
        plugins = plugins.replace(name, value)
    lab.write("plugins/values.py", [plugins])
    given = given or {"id": "in", "type": "source", "plugin": "values", "settings": {}}
    lab.pipeline(
        connectors=[given, destination()],
        processors=list(processors),
        delivery=delivery or {},
        **{"dead-letter-queue": queue()},
    )


TABLE, AWAY = processor("table", "table"), processor("away", "away")
TIMES = processor("times", "field.set", field=".Payload.After.n", expression="after.n * 10")


@pytest.mark.parametrize("log", ["positions", "records"])
def test_values_of_derived_classes_are_plain_ones(lab: Lab, log: str) -> None:
    build(lab, AFTER="{'n': VALUES}", OPERATION="Operation.UPDATE", POSITION="Text(n + 1)", delivery={"log": log})
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"n": PLAIN}] * 3


def test_so_are_those_of_a_processor(lab: Lab) -> None:
    lab.write("in.jsonl", [{"n": 0}])
    gives = "record.after['n'] = VALUES; record.operation = np.str_('update')"
    build(lab, DECODE, TABLE, given=source(), GIVES=gives)
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"n": PLAIN}]


@pytest.mark.parametrize("log", ["positions", "records"])
def test_dates_and_decimals_of_a_source_go_through_processors(lab: Lab, log: str) -> None:
    copied = processor("copied", "field.set", field=".Payload.After.at", expression="after.n")
    after = "{'n': date(2026, 1, 2), 'd': Decimal('1.10')}"
    build(lab, TABLE, copied, AFTER=after, delivery={"log": log})
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"n": "2026-01-02", "d": "1.10", "at": "2026-01-02"}] * 3


def test_a_position_with_half_a_character_is_named(lab: Lab) -> None:
    build(lab, POSITION="chr(0xd800) + str(n)")
    error = lab.run().error
    assert error is not None and (error.code, error.node) == ("source.position_invalid", "p:in")


def test_a_source_may_keep_its_records(lab: Lab) -> None:
    """A repeated step has them as they were."""
    build(lab, TIMES, AWAY)
    error = lab.run(parallelism=1).error
    assert error is not None and error.code == "mine.away"
    assert lab.run(parallelism=1).error is None
    assert [one["n"] for one in lab.documents("out.jsonl")] == [0, 10, 20]


@pytest.mark.parametrize("gives", ["record.after = PAGES", "record = KEPT", "record.key = PAGES; record.after = PAGES"])
def test_a_processor_may_keep_its_documents(lab: Lab, gives: str) -> None:
    """Each step has one of them, which the processor behind changes."""
    gives = f"PAGES.setdefault('n', 1); KEPT = globals().setdefault('KEPT', Record(1, {{}}, PAGES)); {gives}"
    build(lab, TABLE, TIMES, delivery={"batch-size": 1}, GIVES=gives)
    assert lab.run(parallelism=1).error is None
    assert lab.documents("out.jsonl") == [{"n": 10}] * 3
