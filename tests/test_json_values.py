"""What JSON cannot hold is told by its place and class."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from conduit_dagster.json_values import is_json, unfit


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"a": 1, "b": {"c": [1, np.int64(2)]}}, ".Key.b.c[1] is of the class numpy.int64"),
        ({"d": date(2026, 1, 2)}, ".Key.d is of the class datetime.date"),
        ({"d": Decimal("1.5")}, ".Key.d is of the class decimal.Decimal"),
        ({"s": {1}}, ".Key.s is of the class set"),
        ({"f": [float("nan"), float("-inf")]}, ".Key.f[0] is NaN"),
        ({"n": 10**4300}, ".Key.n is an integer of more than 4300 digits"),
        ({"m": {1: "x"}}, "a name in .Key.m is of the class int"),
    ],
)
def test_a_value_that_json_cannot_hold_is_told_by_place_and_class(value: dict[str, Any], told: str) -> None:
    assert not is_json(value)
    assert unfit(value, ".Key") == told


@pytest.mark.parametrize("value", [None, b"\xff", "text", {"a": [1, 1.5, True, None, {"b": "c"}]}])
def test_nothing_is_told_of_what_json_can_hold(value: Any) -> None:
    assert is_json(value)
    assert unfit(value, ".Key") is None
