"""``clone``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pydantic import ValidationError

from conduit_dagster.record import Record
from conduit_dagster.sdk import Processor

Make = Callable[..., Processor]


def test_golden(golden: Callable[[str], None]) -> None:
    golden("clone")


def test_clones_share_nothing_that_can_change(processor: Make) -> None:
    metadata = {"m": "1"}
    record = Record("1", metadata, {"a": {"b": [1]}}, {"k": 1}, {"c": {}})
    [result] = processor("clone", {"count": "2"}).process_block([record])
    assert isinstance(result, list)
    assert [one.metadata["clone.index"] for one in result] == ["0", "1", "2"]
    result[0].after["a"]["b"].append(2)  # type: ignore[index, call-overload]
    result[1].before["c"]["x"] = 1  # type: ignore[index, call-overload]
    assert result[2].after == {"a": {"b": [1]}} and result[2].before == {"c": {}}
    assert metadata == {"m": "1"}


@pytest.mark.parametrize("count", ["0", "-1", "x", "", "100001", "1" + "0" * 20])
def test_what_is_no_count_is_refused(processor: Make, count: str) -> None:
    with pytest.raises(ValidationError):
        processor("clone", {"count": count})
