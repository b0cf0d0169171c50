"""``filter``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conduit_dagster.record import Record
from conduit_dagster.sdk import DROP


@pytest.mark.parametrize(
    "case",
    [
        "filter-all",
        "filter-eq",
        "filter-cond-error",
        "filter-cond-not-bool",
        "cond-and-or-not",
        "cond-hasprefix",
    ],
)
def test_golden(golden: Callable[[str], None], case: str) -> None:
    """The output equals Conduit's."""
    golden(case)


def test_drops_everything_without_looking(processor: Callable[..., Any]) -> None:
    """Whatever the records contain; the key is not needed."""
    subject = processor("filter")
    assert subject.process_block([Record(1, {}, b"raw"), Record(2, {}, {})]) == [DROP, DROP]
    assert subject.process(Record(1, {})) is DROP
    assert subject.reads_key is False
