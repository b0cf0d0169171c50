"""``split``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from conduit_dagster.record import Record
from conduit_dagster.sdk import Nack, Processor

Make = Callable[..., Processor]


def test_golden(golden: Callable[[str], None]) -> None:
    golden("split")


def test_the_rest_is_copied_for_each(processor: Make) -> None:
    record = Record("1", {"m": "1"}, {"a": {"x": 1}, "l": [{"n": 1}, {"n": 2}]}, {"k": [7]})
    [result] = processor("split", {"field": ".Payload.After.l"}).process_block([record])
    assert isinstance(result, list)
    assert [one.after for one in result] == [{"a": {"x": 1}, "l": {"n": 1}}, {"a": {"x": 1}, "l": {"n": 2}}]
    assert [one.metadata for one in result] == [{"m": "1", "split.index": "0"}, {"m": "1", "split.index": "1"}]
    first, second = result
    assert isinstance(first.after, dict) and isinstance(first.key, dict)
    first.after["a"]["x"] = 9
    first.key["k"].append(8)
    assert second.after == {"a": {"x": 1}, "l": {"n": 2}} and second.key == {"k": [7]}


@pytest.mark.parametrize("after", [{"l": 1}, {"l": {"a": 1}}, {"l": "[1]"}, {"l": None}, {}, None])
def test_what_is_no_list_is_a_nack_and_stays_as_it_was(processor: Make, after: Any) -> None:
    record = Record("1", {}, after)
    [result] = processor("split", {"field": ".Payload.After.l"}).process_block([record])
    assert isinstance(result, Nack) and result.code == "split.no_list"
    assert record == Record("1", {}, after)


def test_raw_data_is_told_apart(processor: Make) -> None:
    [result] = processor("split", {"field": ".Payload.After.l"}).process_block([Record("1", {}, b"raw")])
    assert isinstance(result, Nack) and result.code == "field.unresolved"


def test_of_the_key(processor: Make) -> None:
    subject = processor("split", {"field": ".Key.ids"})
    assert subject.reads_key and not processor("split", {"field": ".Payload.After.l"}).reads_key
    [result] = subject.process_block([Record("1", {}, None, {"ids": [1, 2]})])
    assert isinstance(result, list)
    assert [one.key for one in result] == [{"ids": 1}, {"ids": 2}]


@pytest.mark.parametrize("field", [".Metadata.x", ".Position", ".Operation", "l"])
def test_other_parts_are_refused(processor: Make, field: str) -> None:
    with pytest.raises(ValidationError):
        processor("split", {"field": field})
