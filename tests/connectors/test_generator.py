"""The generator: the same records whenever a range is read again, at the requested rate, resumable."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from conduit_dagster.connectors.generator.source import GeneratorSettings, GeneratorSource, mix
from conduit_dagster.expressions import Clock
from conduit_dagster.record import Record
from conduit_dagster.sdk import Block, ConnectorContext, Limit, ReadOptions

STRUCTURED = {
    "format.type": "structured",
    "format.options.id": "int",
    "format.options.name": "string",
    "format.options.at": "time",
    "format.options.ok": "bool",
    "format.options.took": "duration",
}


def make(**settings: str) -> GeneratorSource:
    return GeneratorSource(GeneratorSettings.model_validate(settings), ConnectorContext("p", "in", "/", Clock(5)))


def read(source: GeneratorSource, start: int, end: int, n: int = 1) -> list[Record]:
    blocks = [b for split in source.split(start, end, n) for b in source.read(split, ReadOptions(block_records=7))]
    assert all(isinstance(block, Block) for block in blocks)
    return [record for block in blocks for record in block.records]


def test_a_range_read_again_gives_the_same_records() -> None:
    """However it is split, and by whichever process."""
    first, again = read(make(**STRUCTURED), 0, 100), read(make(**STRUCTURED), 0, 100, 3)
    assert first == again
    assert read(make(**STRUCTURED), 40, 50) == first[40:50]
    assert [record.position for record in first] == list(range(1, 101))
    assert read(make(**STRUCTURED, seed="2"), 0, 100) != first


def test_fields_have_their_types() -> None:
    for record in read(make(**STRUCTURED), 0, 50):
        assert isinstance(record.after, dict)
        kinds = {name: type(value) for name, value in record.after.items()}
        assert kinds == {"id": int, "name": str, "at": int, "ok": bool, "took": int}
        assert record.after["at"] == 5


def test_operations_decide_before_and_after() -> None:
    source = make(**STRUCTURED, operations="create,update,delete,snapshot")
    records = read(source, 0, 200)
    assert {record.operation for record in records} == {"create", "update", "delete", "snapshot"}
    for record in records:
        assert (record.before is not None) == (record.operation in ("update", "delete"))
        assert (record.after is None) == (record.operation == "delete")


def test_collections_have_formats_of_their_own() -> None:
    source = make(
        **{
            "collections.users.format.type": "raw",
            "collections.users.format.options.id": "int",
            "collections.orders.format.type": "structured",
            "collections.orders.format.options.id": "int",
            "collections.orders.operations": "delete",
        }
    )
    records = read(source, 0, 100)
    kinds = {(record.collection, type(record.after or record.before)) for record in records}
    assert kinds == {("users", bytes), ("orders", dict)}


def test_it_ends_at_the_record_count() -> None:
    source = make(**STRUCTURED, recordCount="25")
    assert source.latest(0, Limit(10, 10**9)) == 10
    assert source.latest(20, Limit(10, 10**9)) == 25
    assert source.latest(25, Limit(10, 10**9)) == 25
    assert [source.lag(position) for position in (20, 25, 30)] == [5, 0, 0]


def test_the_rate_is_kept() -> None:
    """Never faster than the rate, counted from the start of the run."""
    began, source = time.monotonic(), make(**STRUCTURED, rate="1000")
    position = source.latest(0, Limit(10**6, 10**9))
    while position < 100:
        position = source.latest(position, Limit(10**6, 10**9))
        assert position <= (time.monotonic() - began) * 1000
    assert time.monotonic() - began >= 0.1


def test_without_an_end_a_drain_takes_what_is_due_once() -> None:
    source = make(**STRUCTURED)
    horizon = source.horizon()
    assert source.latest(0, Limit(50, 10**9), horizon) == 50
    assert source.latest(50, Limit(50, 10**9), horizon) == 50


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "nothing to generate"),
        ({"format.type": "structured"}, "has no fields"),
        ({"format.type": "raw", "format.options.a": "uuid"}, "has type 'uuid'"),
        ({"format.type": "file"}, "has no file"),
        ({**STRUCTURED, "operations": "create,upsert"}, "unknown operation 'upsert'"),
        ({"collections.a.format.options.x": "int"}, "has no format.type"),
        ({**STRUCTURED, "rate": "-1"}, "greater than or equal to 0"),
        ({**STRUCTURED, "burst.generateTime": "0s"}, "longer than 0s"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make(**settings)


def test_numbers_are_well_spread() -> None:
    numbers = [mix(i) for i in range(1000)]
    assert len(set(numbers)) == 1000
    assert all(a != b + 1 for a, b in pairwise(numbers))
